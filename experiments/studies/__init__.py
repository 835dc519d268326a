"""How several runs are planned and carried out: a comparison, or a published experiment."""
