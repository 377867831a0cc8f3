//! What every template promises, whatever the expert and the VTCM.

mod cases;
mod models;
mod pipeline;
mod rules;
