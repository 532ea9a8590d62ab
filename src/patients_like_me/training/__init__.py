"""Training: five strategies over one visible loop, and the run folder that it leaves behind."""
