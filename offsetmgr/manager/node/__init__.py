"""A node is one process of the offset manager: its log, its runtime and its membership of the managers' group."""
