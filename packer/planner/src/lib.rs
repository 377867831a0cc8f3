//! Chooses how to stream: (G, Q, B) and a schedule, from how long the parts of a request take
//! (paper §3.4). Nothing is read, run or measured here, and there is no clock.
//!
//! A [`Question`] has a device's times, a bundle's sizes and what is asked of them; a [`Problem`] is one that
//! makes sense; [`plan`] answers it with a [`Choice`], or says why there is none. [`explain`] says
//! of another configuration why it was not chosen, [`survey`] what more or less memory would do, and [`forecast`]
//! what happens when with any.
//!
//! Two models predict. [`predict`] is the recurrence of paper equation 5, and so is what is used for `early`, the
//! paper's schedule. For the others a simulation takes the same decisions as the runtime does, read by
//! read. `docs/cost-model.md` has every formula.
#![forbid(unsafe_code)]

#[cfg(test)]
mod checks;
mod depth;
mod early;
mod evaluate;
mod explain;
mod feasible;
mod forecast;
mod problem;
mod recurrence;
mod routes;
mod search;
mod simulate;
mod survey;
mod times;

pub use evaluate::{Evaluated, Prediction};
pub use explain::{Explained, explain};
pub use feasible::{Inequality, Rule};
pub use forecast::{Forecast, Span, What, forecast};
pub use problem::{GroupSize, LayerSize, Malformed, Problem, Question, Search, Workload};
pub use recurrence::{Group, Layer, Predicted, predict};
pub use routes::{expected_routes, expected_union};
pub use search::{Choice, Infeasible, plan};
pub use survey::{Candidate, Survey, survey};
