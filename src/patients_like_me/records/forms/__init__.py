"""Forms of records other than MIMIC-IV's tables: one file each, which writes a hospital in that form."""
