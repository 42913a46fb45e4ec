"""What several tests share: models, oracles, snapshots, a pretended device, processes."""
