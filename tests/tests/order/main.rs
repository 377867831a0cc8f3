//! Orders of experts, from routes to what they are worth.

mod desk;
mod reorder;
mod simulate;
