//! The C of the kernels, built and run: on this machine, in an emulator of Hexagon, and as objects
//! for a device, which nothing here can run.
#![expect(clippy::print_stdout, reason = "tests print what they counted")]

mod abi;
mod contract;
mod decode;
mod device;
mod expert;
mod hostile;
mod late;
mod numbers;
mod ops;
mod parts;
mod plan;
mod process;
mod random;
mod templates;
mod tools;
