"""The oldest and the newest versions of every dependency that pyproject.toml allows: `make versions`."""
