//! Pictures of small and of hostile data, read back.

mod examples;
mod golden;
mod hostile;
mod meaning;
mod read;
mod readable;
