//! A model's results beside those of the reference, position by position.

use std::io;

use estream_runtime::backend::Routes;
use estream_runtime::output::top;
use estream_runtime::{Model, Observer, Sink};

use super::reference::{Reference, Spool, pass};
use super::shape::Shape;
use super::stats::{common, kl, log_norm, log_tail};
use super::stored::{Choices, Kept, Rows, narrow};
use super::windows::{Place, Windows};
use crate::failure::Failure;
use crate::ui::Ui;

/// Likeliest tokens whose agreement is counted.
const FEW: usize = 5;

/// Everything that was counted.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// Divergence of each position, in nats.
    pub(crate) kl: Vec<f64>,
    /// Positions with the same likeliest token.
    pub(crate) same_top: usize,
    /// Tokens counted in `common_few`, of the reference.
    pub(crate) few: usize,
    /// Those of them that are among the model's too.
    pub(crate) common_few: usize,
    /// Positions after which the text goes on.
    pub(crate) predicted: usize,
    /// −ln of the probabilities of what follows, summed: the reference's, the model's.
    pub(crate) surprise: [f64; 2],
    /// One for each layer with a router.
    pub(crate) layers: Vec<LayerAgreement>,
}

/// How far two routers agree.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LayerAgreement {
    /// The layer.
    pub(crate) layer: u64,
    /// Tokens it routed.
    pub(crate) rows: usize,
    /// Those with the same set of experts.
    pub(crate) same_rows: usize,
    /// Experts the reference chose.
    pub(crate) chosen: usize,
    /// Those that the model chose too.
    pub(crate) common: usize,
    /// The first token with another set.
    pub(crate) first: Option<Difference>,
    /// The largest of the reference's margins where the sets differ, if any is known.
    pub(crate) widest_margin: Option<f32>,
}

/// A token that was routed otherwise.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Difference {
    pub(crate) place: Place,
    /// By how much the reference preferred its last expert to the next one.
    pub(crate) margin: Option<f32>,
    pub(crate) reference: Vec<u16>,
    pub(crate) bundle: Vec<u16>,
}

/// Runs the text of `reference` through `model`, and compares.
pub(crate) fn compare(
    reference: &mut Reference,
    model: &mut Model,
    ui: &Ui,
) -> Result<Comparison, Failure> {
    let Reference { stored, spool } = reference;
    let mut comparison = Comparison::default();
    let routers = stored.shape.routers.iter();
    let mut layers: Vec<LayerAgreement> = routers
        .map(|router| LayerAgreement {
            layer: router.layer,
            ..LayerAgreement::default()
        })
        .collect();
    let mut rows = RowCompare {
        windows: &stored.windows,
        rows: &stored.rows,
        spool: spool.as_mut(),
        whole: Vec::new(),
        index: 0,
        comparison: &mut comparison,
    };
    let mut choices = ChoiceCompare {
        shape: &stored.shape,
        windows: &stored.windows,
        choices: &stored.choices,
        layers: &mut layers,
    };
    pass(
        model,
        &stored.windows,
        &mut rows,
        &mut choices,
        "comparing",
        ui,
    )?;
    comparison.layers = layers;
    Ok(comparison)
}

struct RowCompare<'a> {
    windows: &'a Windows,
    rows: &'a Rows,
    /// The reference's whole rows, in order, if there are any.
    spool: Option<&'a mut Spool>,
    whole: Vec<f32>,
    /// Of the next row, counted over all windows.
    index: usize,
    comparison: &'a mut Comparison,
}

impl Sink for RowCompare<'_> {
    fn logits(&mut self, _position: usize, row: &[f32]) -> io::Result<()> {
        let kept = self.rows.get(self.index);
        let norm = log_norm(row);
        let divergence = match &mut self.spool {
            None => over_bins(&kept, row, norm),
            Some(spool) => {
                spool.next(&mut self.whole, row.len())?;
                let pairs = self.whole.iter().zip(row);
                kl(pairs.map(|(p, q)| (f64::from(*p) - kept.log_norm, f64::from(*q) - norm)))
            }
        };
        let all = &mut *self.comparison;
        all.kl.push(divergence);
        let few = FEW.min(kept.ids.len());
        let best: Vec<u32> = top(row, few).iter().map(|best| best.id).collect();
        all.same_top += usize::from(best.first() == kept.ids.first());
        all.few += few;
        all.common_few += common(&kept.ids[..few], &best);
        if let Some(next) = self.windows.next(self.index) {
            all.predicted += 1;
            all.surprise[0] += kept.log_norm - f64::from(kept.next_logit);
            all.surprise[1] += norm - f64::from(row[next as usize]);
        }
        self.index += 1;
        Ok(())
    }
}

/// The divergence over the tokens that are kept, each on its own, and all others as one:
/// at most that over all tokens.
fn over_bins(kept: &Kept<'_>, row: &[f32], norm: f64) -> f64 {
    let tokens = kept.ids.iter().zip(kept.logits).map(|(id, p)| {
        let q = row[*id as usize];
        (f64::from(*p) - kept.log_norm, f64::from(q) - norm)
    });
    let rest = (kept.log_tail, log_tail(row, norm, kept.ids));
    kl(tokens.chain([rest]))
}

struct ChoiceCompare<'a> {
    shape: &'a Shape,
    windows: &'a Windows,
    choices: &'a [Choices],
    layers: &'a mut [LayerAgreement],
}

impl Observer for ChoiceCompare<'_> {
    fn routes(&mut self, layer: usize, routes: &Routes) {
        let Some(router) = self.shape.router(layer) else {
            return;
        };
        let (reference, agreement) = (&self.choices[router], &mut self.layers[router]);
        for chosen in routes.experts.chunks_exact(routes.top_k) {
            let chosen = chosen.iter().map(|expert| narrow(*expert)).collect();
            agreement.push(reference, chosen, self.windows);
        }
    }
}

impl LayerAgreement {
    /// Counts the next token, for which the model has `chosen`.
    fn push(&mut self, reference: &Choices, chosen: Vec<u16>, windows: &Windows) {
        let row = self.rows;
        let expected = &reference.experts[row * chosen.len()..][..chosen.len()];
        let common = common(expected, &chosen);
        self.rows += 1;
        self.chosen += chosen.len();
        self.common += common;
        if common == chosen.len() {
            self.same_rows += 1;
            return;
        }
        let margin = reference.margins.get(row).copied();
        // `None` is less than any margin.
        self.widest_margin = match self.widest_margin.zip(margin) {
            Some((a, b)) => Some(a.max(b)),
            None => self.widest_margin.or(margin),
        };
        if self.first.is_none() {
            self.first = Some(Difference {
                place: windows.place(row),
                margin,
                reference: expected.to_vec(),
                bundle: chosen,
            });
        }
    }
}

impl Comparison {
    /// The first token that was routed otherwise, and its layer: the earliest window,
    /// then the earliest position, then the lowest layer.
    pub(crate) fn first(&self) -> Option<(u64, &Difference)> {
        let layers = self.layers.iter();
        let all = layers.filter_map(|layer| Some((layer.layer, layer.first.as_ref()?)));
        all.min_by_key(|(layer, difference)| (difference.place, *layer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_hold_the_divergence_that_whole_rows_have_or_less() {
        let (p, q) = ([2.0f32, 1.0, 0.5, -1.0], [1.5f32, 1.0, 0.25, 0.0]);
        let whole = {
            let (a, b) = (log_norm(&p), log_norm(&q));
            let pairs = p.iter().zip(&q);
            kl(pairs.map(|(p, q)| (f64::from(*p) - a, f64::from(*q) - b)))
        };
        assert!(whole > 0.01);
        let mut before = 0.0;
        for top in 1..=4 {
            let mut rows = Rows {
                top,
                ..Rows::default()
            };
            rows.push(&p, None);
            let bins = over_bins(&rows.get(0), &q, log_norm(&q));
            assert!(bins >= before && bins <= whole + 1e-15, "{top}: {bins}");
            assert_eq!(over_bins(&rows.get(0), &p, log_norm(&p)), 0.0);
            before = bins;
        }
        assert!((before - whole).abs() < 1e-15);
    }

    #[test]
    fn c90_the_first_divergence_of_every_layer_is_kept_with_its_margin() {
        let windows = Windows::new(vec![0; 6], 3);
        let reference = Choices {
            experts: vec![1, 2, 1, 2, 1, 2, 1, 2],
            margins: vec![0.5, 0.25, 0.125, 0.0625],
        };
        let mut layer = LayerAgreement::default();
        for chosen in [vec![2, 1], vec![3, 1], vec![5, 6], vec![1, 2]] {
            layer.push(&reference, chosen, &windows);
        }
        let first = Difference {
            place: Place {
                window: 0,
                position: 1,
            },
            margin: Some(0.25),
            reference: vec![1, 2],
            bundle: vec![3, 1],
        };
        assert_eq!((layer.rows, layer.same_rows), (4, 2));
        assert_eq!((layer.chosen, layer.common), (8, 5));
        assert_eq!(
            (layer.first.as_ref(), layer.widest_margin),
            (Some(&first), Some(0.25))
        );

        let at = |layer, window, position| LayerAgreement {
            layer,
            first: Some(Difference {
                place: Place { window, position },
                ..first.clone()
            }),
            ..LayerAgreement::default()
        };
        let earliest = |layers: Vec<LayerAgreement>| {
            let comparison = Comparison {
                layers,
                ..Comparison::default()
            };
            comparison.first().map(|(layer, _)| layer)
        };
        assert_eq!(
            earliest(vec![at(1, 1, 0), at(2, 0, 9), at(5, 0, 9)]),
            Some(2)
        );
        assert_eq!(earliest(vec![at(1, 0, 9), at(2, 0, 8)]), Some(2));
        assert_eq!(earliest(vec![LayerAgreement::default()]), None);
    }
}
