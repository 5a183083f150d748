"""The sections of the check, one a file; each has `run(scene, report)`."""
