"""The node agent: takes records from the rings of its node, keeps them and hands them on."""
