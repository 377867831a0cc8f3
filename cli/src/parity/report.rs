//! The answer: figures, limits they are held to, and both as tables.

use std::fmt::Write;
use std::path::PathBuf;

use serde::Serialize;

use super::compare::{Comparison, Difference, LayerAgreement};
use super::reference::{Reference, Source};
use super::stats::{Spread, exp};
use super::windows::Place;
use crate::paths;
use crate::tables::{grouped, table};

/// All that is told.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    #[serde(serialize_with = "paths::one")]
    pub(crate) bundle: PathBuf,
    pub(crate) identity: String,
    pub(crate) reference: ReferenceUsed,
    pub(crate) text: TextUsed,
    pub(crate) kl: Kl,
    /// Positions with the same likeliest token, per cent.
    pub(crate) same_top_pct: f64,
    /// The reference's five likeliest tokens that are among the bundle's, per cent.
    pub(crate) common_top5_pct: f64,
    pub(crate) perplexity: Option<Perplexity>,
    pub(crate) experts: Option<Experts>,
    pub(crate) limits: Vec<Checked>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ReferenceUsed {
    #[serde(serialize_with = "paths::one")]
    pub(crate) path: PathBuf,
    pub(crate) kind: Source,
    /// Identity of the bundle that computed it.
    pub(crate) identity: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct TextUsed {
    pub(crate) positions: usize,
    pub(crate) windows: usize,
    /// Tokens of a window.
    pub(crate) window: usize,
    /// Digest of the token ids.
    pub(crate) tokens: String,
}

/// KL(reference ‖ bundle) in nats.
#[derive(Debug, Serialize)]
pub(crate) struct Kl {
    /// Bins of a position: all tokens, or those that were stored and one for the rest.
    pub(crate) bins: usize,
    /// Whether each bin is one token; if not, figures are lower bounds.
    pub(crate) exact: bool,
    pub(crate) mean: f64,
    pub(crate) median: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
    pub(crate) max_at: Place,
}

#[derive(Debug, Serialize)]
pub(crate) struct Perplexity {
    /// Tokens that were predicted.
    pub(crate) tokens: usize,
    pub(crate) reference: f64,
    pub(crate) bundle: f64,
    pub(crate) ratio: f64,
}

/// Agreement of the routers.
#[derive(Debug, Serialize)]
pub(crate) struct Experts {
    /// Tokens with the same set of experts, over all layers, per cent.
    pub(crate) same_rows_pct: f64,
    /// The reference's experts that the bundle chose too, over all layers, per cent.
    pub(crate) common_pct: f64,
    /// The earliest token that was routed otherwise, and the first layer that did.
    pub(crate) first: Option<First>,
    pub(crate) layers: Vec<Layer>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Layer {
    pub(crate) layer: u64,
    pub(crate) rows: usize,
    pub(crate) same_rows_pct: f64,
    pub(crate) common_pct: f64,
    pub(crate) first: Option<First>,
    pub(crate) widest_margin: Option<f32>,
}

#[derive(Debug, Serialize)]
pub(crate) struct First {
    pub(crate) layer: u64,
    #[serde(flatten)]
    pub(crate) place: Place,
    /// By how much the reference preferred its last expert to the next.
    pub(crate) margin: Option<f32>,
    pub(crate) reference: Vec<u16>,
    pub(crate) bundle: Vec<u16>,
}

/// What the user demands; nothing by default.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = "Exit with 1 unless")]
pub(crate) struct Limits {
    /// The mean divergence is at most X nats
    #[arg(long, value_name = "X", value_parser = number)]
    max_kl: Option<f64>,
    /// 99 % of positions diverge by at most X nats
    #[arg(long, value_name = "X", value_parser = number)]
    max_kl_p99: Option<f64>,
    /// The likeliest token is the same at PCT per cent of positions
    #[arg(long, value_name = "PCT", value_parser = number)]
    min_top1: Option<f64>,
    /// The bundle's perplexity is at most X times the reference's
    #[arg(long, value_name = "X", value_parser = number)]
    max_ppl_ratio: Option<f64>,
    /// PCT per cent of the reference's experts are chosen, over all layers
    #[arg(long, value_name = "PCT", value_parser = number)]
    min_experts: Option<f64>,
}

/// A limit, and whether it was kept.
#[derive(Debug, Serialize)]
pub(crate) struct Checked {
    pub(crate) option: &'static str,
    pub(crate) limit: f64,
    /// The figure, if the text and the model have it.
    pub(crate) found: Option<f64>,
    pub(crate) kept: bool,
}

fn number(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    number
        .filter(|x: &f64| x.is_finite() && *x >= 0.0)
        .ok_or_else(|| "is not a number from 0 up".to_owned())
}

/// `part` of `whole` in per cent; all of nothing.
fn pct(part: usize, whole: usize) -> f64 {
    match whole {
        0 => 100.0,
        whole => 100.0 * part as f64 / whole as f64,
    }
}

impl Report {
    /// What `comparison` with `reference` came to; `None` if it has no position.
    pub(crate) fn new(
        (bundle, identity): (PathBuf, String),
        used: ReferenceUsed,
        reference: &Reference,
        comparison: &Comparison,
        limits: &Limits,
    ) -> Option<Report> {
        let windows = &reference.stored.windows;
        let spread = Spread::of(&comparison.kl)?;
        let vocab = usize::try_from(reference.stored.shape.vocab).unwrap_or(usize::MAX);
        let top = reference.stored.rows.top;
        let exact = reference.spool.is_some() || top == vocab;
        let mut report = Report {
            bundle,
            identity,
            reference: used,
            text: TextUsed {
                positions: windows.ids().len(),
                windows: windows.iter().len(),
                window: windows.window(),
                tokens: windows.digest().to_string(),
            },
            kl: Kl {
                bins: if exact { vocab } else { top + 1 },
                exact,
                mean: spread.mean,
                median: spread.median,
                p90: spread.p90,
                p99: spread.p99,
                max: spread.max,
                max_at: windows.place(spread.max_at),
            },
            same_top_pct: pct(comparison.same_top, comparison.kl.len()),
            common_top5_pct: pct(comparison.common_few, comparison.few),
            perplexity: Perplexity::of(comparison),
            experts: Experts::of(comparison),
            limits: Vec::new(),
        };
        report.limits = limits.check(&report);
        Some(report)
    }

    /// The limits that were not kept, in words; nothing if all were.
    pub(crate) fn failed(&self) -> Vec<String> {
        let failed = self.limits.iter().filter(|limit| !limit.kept);
        let words = failed.map(|checked| match checked.found {
            Some(found) => format!("{} {}: found {found}", checked.option, checked.limit),
            None => format!(
                "{} {}: there is no such figure",
                checked.option, checked.limit
            ),
        });
        words.collect()
    }

    /// For people; `at_max` is what is said of the token at the largest divergence.
    pub(crate) fn text(&self, at_max: &str) -> String {
        let mut out = String::new();
        let text = &self.text;
        let _ = writeln!(
            out,
            "{} positions, windows of {} tokens: {}",
            grouped(text.positions as u64),
            text.window,
            text.windows
        );
        let kl = &self.kl;
        let over = match kl.exact {
            true => format!("over all {} tokens", grouped(kl.bins as u64)),
            false => format!(
                "over the {} likeliest tokens and the rest: a lower bound",
                kl.bins - 1
            ),
        };
        let _ = writeln!(out, "KL(reference ‖ bundle) in nats, {over}");
        let mut spread = table(&["mean", "median", "p90", "p99", "max"]);
        let figures = [kl.mean, kl.median, kl.p90, kl.p99, kl.max];
        spread.add_row(figures.map(|x| format!("{x:.3e}")));
        let Place { window, position } = kl.max_at;
        let _ = writeln!(
            out,
            "{spread}\nlargest at position {position} of window {window}, after {at_max}\n\
             same likeliest token {:.2} %, of the 5 likeliest {:.2} % in common",
            self.same_top_pct, self.common_top5_pct
        );
        if let Some(perplexity) = &self.perplexity {
            let _ = writeln!(
                out,
                "perplexity of {} tokens: reference {:.4}, bundle {:.4}, ratio {:.5}",
                grouped(perplexity.tokens as u64),
                perplexity.reference,
                perplexity.bundle,
                perplexity.ratio
            );
        }
        if let Some(experts) = &self.experts {
            out.push_str(&experts.text());
        }
        if !self.limits.is_empty() {
            let mut limits = table(&["limit", "asked", "found", ""]);
            for limit in &self.limits {
                limits.add_row([
                    limit.option.to_owned(),
                    limit.limit.to_string(),
                    limit.found.map_or("none".to_owned(), |x| format!("{x:.6}")),
                    if limit.kept { "kept" } else { "NOT KEPT" }.to_owned(),
                ]);
            }
            let _ = writeln!(out, "{limits}");
        }
        out
    }
}

impl Perplexity {
    fn of(comparison: &Comparison) -> Option<Perplexity> {
        let tokens = comparison.predicted;
        let count = (tokens > 0).then_some(tokens as f64)?;
        let [reference, bundle] = comparison.surprise.map(|sum| sum / count);
        Some(Perplexity {
            tokens,
            reference: exp(reference),
            bundle: exp(bundle),
            ratio: exp(bundle - reference),
        })
    }
}

impl Experts {
    fn of(comparison: &Comparison) -> Option<Experts> {
        let layers = &comparison.layers;
        let sum = |of: fn(&LayerAgreement) -> usize| layers.iter().map(of).sum();
        (!layers.is_empty()).then(|| Experts {
            same_rows_pct: pct(sum(|l| l.same_rows), sum(|l| l.rows)),
            common_pct: pct(sum(|l| l.common), sum(|l| l.chosen)),
            first: comparison
                .first()
                .map(|(layer, first)| First::of(layer, first)),
            layers: layers.iter().map(Layer::of).collect(),
        })
    }

    fn text(&self) -> String {
        let mut layers = table(&[
            "layer",
            "same experts %",
            "in common %",
            "first window",
            "position",
            "margin",
            "widest margin",
        ]);
        let number = |x: Option<f32>| x.map_or(String::new(), |x| format!("{x:.2e}"));
        for layer in &self.layers {
            let place = layer.first.as_ref().map(|first| first.place);
            let of = |of: fn(Place) -> usize| place.map_or(String::new(), |p| of(p).to_string());
            layers.add_row([
                layer.layer.to_string(),
                format!("{:.2}", layer.same_rows_pct),
                format!("{:.2}", layer.common_pct),
                of(|place| place.window),
                of(|place| place.position),
                number(layer.first.as_ref().and_then(|first| first.margin)),
                number(layer.widest_margin),
            ]);
        }
        let mut out = format!("{layers}\n");
        let _ = match &self.first {
            None => writeln!(out, "experts are the same everywhere"),
            Some(first) => writeln!(
                out,
                "experts differ first at position {} of window {}, in layer {}: {:?}, the bundle {:?}",
                first.place.position,
                first.place.window,
                first.layer,
                first.reference,
                first.bundle
            ),
        };
        out
    }
}

impl Layer {
    fn of(layer: &LayerAgreement) -> Layer {
        Layer {
            layer: layer.layer,
            rows: layer.rows,
            same_rows_pct: pct(layer.same_rows, layer.rows),
            common_pct: pct(layer.common, layer.chosen),
            first: layer
                .first
                .as_ref()
                .map(|first| First::of(layer.layer, first)),
            widest_margin: layer.widest_margin,
        }
    }
}

impl First {
    fn of(layer: u64, difference: &Difference) -> First {
        First {
            layer,
            place: difference.place,
            margin: difference.margin,
            reference: difference.reference.clone(),
            bundle: difference.bundle.clone(),
        }
    }
}

impl Limits {
    fn check(&self, report: &Report) -> Vec<Checked> {
        let experts = report.experts.as_ref().map(|experts| experts.common_pct);
        let ratio = report.perplexity.as_ref().map(|ppl| ppl.ratio);
        let at_most = |found: f64, limit| found <= limit;
        let at_least = |found: f64, limit| found >= limit;
        type Holds = fn(f64, f64) -> bool;
        let all: [(_, _, _, Holds); 5] = [
            ("--max-kl", self.max_kl, Some(report.kl.mean), at_most),
            (
                "--max-kl-p99",
                self.max_kl_p99,
                Some(report.kl.p99),
                at_most,
            ),
            (
                "--min-top1",
                self.min_top1,
                Some(report.same_top_pct),
                at_least,
            ),
            ("--max-ppl-ratio", self.max_ppl_ratio, ratio, at_most),
            ("--min-experts", self.min_experts, experts, at_least),
        ];
        let asked = all.into_iter().filter_map(|(option, limit, found, holds)| {
            let limit = limit?;
            Some(Checked {
                option,
                limit,
                found,
                kept: found.is_some_and(|found| holds(found, limit)),
            })
        });
        asked.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::LN_2;

    #[test]
    fn perplexity_is_the_exponential_of_the_mean_surprise() {
        let comparison = Comparison {
            predicted: 4,
            surprise: [8.0 * LN_2, 12.0 * LN_2],
            ..Comparison::default()
        };
        let perplexity = Perplexity::of(&comparison).unwrap();
        for (found, exact) in [
            (perplexity.reference, 4.0),
            (perplexity.bundle, 8.0),
            (perplexity.ratio, 2.0),
        ] {
            assert!((found - exact).abs() < 1e-12, "{found}");
        }
        assert!(Perplexity::of(&Comparison::default()).is_none());
    }

    #[test]
    fn limits_are_numbers_that_can_be_met() {
        for text in ["0", "1e-9", "99.5"] {
            assert!(number(text).is_ok(), "{text}");
        }
        for text in ["nan", "inf", "-1", "", "a", "1%"] {
            assert!(number(text).is_err(), "{text}");
        }
    }
}
