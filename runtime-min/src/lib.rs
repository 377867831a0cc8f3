//! Opens a bundle, streams its experts and runs prefill.
//!
//! A [`reader::BundleReader`] is a checked bundle; a [`Model`] is one in memory, with a
//! backend to run it. Results go to a [`Sink`], row by row, because the logits of a long
//! prompt are larger than most models' registers.
//!
//! ```no_run
//! use estream_runtime::{LoadOptions, Model, Positions, Request, Sink, output, reader::BundleReader};
//!
//! struct Best(Option<u32>);
//!
//! impl Sink for Best {
//!     fn logits(&mut self, _position: usize, row: &[f32]) -> std::io::Result<()> {
//!         self.0 = output::top(row, 1).first().map(|best| best.id);
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let reader = BundleReader::open("olmoe.estream".as_ref())?;
//! let mut model = Model::load(&reader, &LoadOptions::default())?;
//! let mut best = Best(None);
//! let request = Request { positions: Positions::Last, ..Request::default() };
//! model.prefill(&[510, 5347, 273, 6181, 310], &request, &mut best)?;
//! println!("next token: {:?}", best.0);
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `reader` alone, only the reader is there.

#[cfg(feature = "run")]
pub mod answer;
#[cfg(feature = "run")]
pub mod backend;
#[cfg(feature = "run")]
mod error;
#[cfg(feature = "run")]
mod executor;
#[cfg(feature = "run")]
mod footprint;
#[cfg(feature = "run")]
mod history;
#[cfg(feature = "run")]
pub mod ids;
#[cfg(feature = "run")]
mod layouts;
#[cfg(feature = "run")]
pub mod math;
#[cfg(feature = "run")]
pub mod measure;
#[cfg(feature = "run")]
mod memory;
#[cfg(feature = "run")]
mod model;
#[cfg(feature = "run")]
mod ops;
#[cfg(feature = "run")]
pub mod output;
#[cfg(feature = "reader")]
pub mod partial;
#[cfg(feature = "run")]
pub mod pool;
#[cfg(feature = "reader")]
pub mod reader;
#[cfg(feature = "run")]
mod registers;
#[cfg(feature = "run")]
mod request;
#[cfg(feature = "run")]
mod resident;
#[cfg(feature = "run")]
mod resolve;
#[cfg(feature = "run")]
pub mod stats;
#[cfg(feature = "run")]
mod store;
#[cfg(feature = "run")]
mod stream;
#[cfg(feature = "run")]
pub mod tensor_file;

#[cfg(feature = "run")]
pub use error::RunError;
#[cfg(feature = "run")]
pub use footprint::Footprint;
#[cfg(feature = "run")]
pub use memory::Memory;
#[cfg(feature = "run")]
pub use model::{BackendKind, LoadOptions, Model, NoBackend};
#[cfg(feature = "run")]
pub use ops::Place;
#[cfg(feature = "run")]
pub use request::{Column, Observer, Outcome, Positions, Request, Sink, check_prompt};
#[cfg(feature = "run")]
pub use store::{ExpertSource, RunRecord};
#[cfg(feature = "run")]
pub use stream::{
    Cancel, Choice, Chosen, Counts, Disk, Doing, Event, IoMode, LayerShape, Overlap, Pin, Regions,
    Step, Streaming, Tally, TraceFile, bytes as parse_size, write_trace,
};
