"""What the files of a cache were made with: others may not be made of it by mistake."""

import json


def keep_settings(path, settings, results):
    """Writes the settings; refuses to go on where `results` exist that were made with others, or nobody knows with which."""
    settings = json.loads(json.dumps(settings))
    if any(True for _ in results):
        if not path.exists():
            raise SystemExit(f"{path}: missing, so nobody knows what the results beside it were made with; take an empty folder")
        before = json.loads(path.read_text())
        differences = [f"{name}: {before.get(name)}, now {settings.get(name)}" for name in sorted(before.keys() | settings.keys())
                       if before.get(name) != settings.get(name)]
        if differences:
            raise SystemExit(f"{path}: the results beside it were made with other settings; take an empty folder, or delete them\n  "
                             + "\n  ".join(differences))
    path.write_text(json.dumps(settings, indent=1) + "\n")
