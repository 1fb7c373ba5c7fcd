# Filled in by the packaging step: install rules, CPack.
