//! In which order the experts of a layer are stored, and what an order is worth.
//!
//! Records are read and executed in storage order, so an order decides which experts are read before
//! a layer's routes are known, and which reads can be joined afterwards. [`orders`] derives one from
//! recorded routes; [`best`] tries all of few; [`Setting`] says what an order costs on a device; and
//! [`compare`] whether it is worth anything on prompts that it was not derived from.
//!
//! ```
//! use estream_order::{By, orders};
//! use estream_schemas::routes::Recording;
//!
//! let zeros = "0".repeat(64);
//! let text = format!(r#"{{"format":"estream-routes","version":1,"bundle":"{zeros}",
//!     "layers":[{{"layer":0,"experts":4,"top_k":2}}],
//!     "prompts":[{{"name":"one","tokens":3,"rows":[[0,3,1,2]]}}]}}"#);
//! let recording = Recording::parse(text.as_bytes()).unwrap();
//! assert_eq!(orders(&recording, By::Frequency)[&0], [1, 3, 2, 0]);
//! ```
//!
//! Everything is a pure function of whole numbers, or of quotients of them that every machine rounds
//! alike: the same routes give the same order, and so the same bundle.
#![forbid(unsafe_code)]

mod bootstrap;
mod by;
mod compare;
mod exhaustive;
mod setting;

pub use bootstrap::Interval;
pub use by::{By, Orders, orders};
pub use compare::{Compared, arranged, compare};
pub use exhaustive::{MAX_UNITS, best};
pub use setting::{Cost, NoCost, Setting, StoredLayer};
