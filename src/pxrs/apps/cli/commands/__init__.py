"""The commands of ``pxrs``: one module or folder for each verb."""
