"""Systems: anything that is fitted on instances and predicts. One file each; see ``contract``."""
