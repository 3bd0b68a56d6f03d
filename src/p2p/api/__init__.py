"""The HTTP interface: what people and scripts see of sessions, and how they steer them."""
