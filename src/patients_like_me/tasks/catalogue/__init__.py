"""The tasks that come with the package: one file each, with everything that is said about the task."""
