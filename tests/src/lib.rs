//! Helpers for end-to-end tests.

mod json_schema;

pub use json_schema::assert_valid;
