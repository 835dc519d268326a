"""A user's own tables and folders of images, and the schema that the clients agree on."""
