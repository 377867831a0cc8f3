//! From a profile to a stored plan, and from that to logits.

mod asked;
mod desk;
mod hot;
