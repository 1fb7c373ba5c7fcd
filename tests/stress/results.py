"""What parts of a long run have found, kept in a file as soon as they are done, so that a run goes on where it was interrupted."""
import hashlib
import json
import pathlib


class Results:
    """By binary and arguments; without a path nothing is kept."""

    def __init__(self, path, binary):
        self.path = path
        self.binary = hashlib.sha256(pathlib.Path(binary).read_bytes()).hexdigest()
        self.runs = json.loads(path.read_text()) if path and path.exists() else {}

    def key(self, *parts):
        return hashlib.sha256(json.dumps([self.binary, *parts]).encode()).hexdigest()

    def keep(self, key, values):
        if self.path:
            self.runs[key] = values
            partial = self.path.with_suffix(".partial")
            partial.write_text(json.dumps(self.runs))
            partial.replace(self.path)

    def once(self, parts, find):
        """What `find()` returns (JSON values), or what it did for the same parts."""
        key = self.key(*parts)
        if key not in self.runs:
            found = find()
            self.keep(key, found)
            return found
        return self.runs[key]
