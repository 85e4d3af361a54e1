"""The data service: tasks of the job ``data`` make the passes over datasets that workers train on."""
