"""Values between the notebook and the tasks of a run: inputs to them; results and records from them."""
