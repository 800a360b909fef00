"""The only door to verl: what overrides, patches or reads its private names. ``contract.py`` lists every one."""
