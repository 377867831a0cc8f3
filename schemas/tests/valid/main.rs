//! Every rule of a valid manifest refuses its violation and says where it is.

mod cases;
mod dense;
mod program;
mod random;
mod rules;
mod sample;
