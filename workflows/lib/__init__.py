"""What the definitions use: resources, checks, metadata, reuse; nothing here defines an asset."""
