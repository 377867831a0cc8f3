//! What is kept of a reference: a few megabytes that a comparison needs no model for.

use estream_runtime::backend::Routes;
use estream_runtime::output::top;

use super::shape::{Router, Shape};
use super::stats::{log_norm, log_tail, margin};
use super::windows::Windows;

/// A reference's results for a text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stored {
    /// The model it is of.
    pub(crate) shape: Shape,
    /// Identity of the bundle that computed it.
    pub(crate) identity: String,
    /// The text.
    pub(crate) windows: Windows,
    /// One row a token.
    pub(crate) rows: Rows,
    /// One for each of [`Shape::routers`].
    pub(crate) choices: Vec<Choices>,
}

impl Stored {
    /// One without rows, for the likeliest `top` tokens of each.
    pub(crate) fn new(shape: Shape, identity: String, windows: Windows, top: usize) -> Stored {
        let vocab = usize::try_from(shape.vocab).unwrap_or(usize::MAX);
        Stored {
            choices: vec![Choices::default(); shape.routers.len()],
            rows: Rows {
                top: top.min(vocab),
                ..Rows::default()
            },
            shape,
            identity,
            windows,
        }
    }
}

/// Logits of each position: the likeliest tokens, and how much the others have together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rows {
    /// Tokens of a row, at most the vocabulary.
    pub(crate) top: usize,
    /// `[positions, top]`: the larger logit first, then the lower id.
    pub(crate) top_ids: Vec<u32>,
    /// `[positions, top]`.
    pub(crate) top_logits: Vec<f32>,
    /// `[positions]`: ln Σ eˣ over the whole row; a logit less this is ln of a probability.
    pub(crate) log_norms: Vec<f64>,
    /// `[positions]`: ln of the probability of all other tokens.
    pub(crate) log_tails: Vec<f64>,
    /// `[positions]`: the logit of the token that follows in the text, 0 where none does.
    pub(crate) next_logits: Vec<f32>,
}

/// One position of [`Rows`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept<'a> {
    pub(crate) ids: &'a [u32],
    pub(crate) logits: &'a [f32],
    pub(crate) log_norm: f64,
    pub(crate) log_tail: f64,
    pub(crate) next_logit: f32,
}

impl Rows {
    /// Adds what is kept of `row`, after which the text goes on with `next`.
    pub(crate) fn push(&mut self, row: &[f32], next: Option<u32>) {
        let best = top(row, self.top);
        let ids: Vec<u32> = best.iter().map(|best| best.id).collect();
        let norm = log_norm(row);
        self.log_tails.push(log_tail(row, norm, &ids));
        self.log_norms.push(norm);
        self.top_ids.extend(ids);
        self.top_logits.extend(best.iter().map(|best| best.logit));
        self.next_logits
            .push(next.map_or(0.0, |id| row[id as usize]));
    }

    /// Position `index` of all.
    pub(crate) fn get(&self, index: usize) -> Kept<'_> {
        let range = index * self.top..(index + 1) * self.top;
        Kept {
            ids: &self.top_ids[range.clone()],
            logits: &self.top_logits[range],
            log_norm: self.log_norms[index],
            log_tail: self.log_tails[index],
            next_logit: self.next_logits[index],
        }
    }
}

/// The experts a layer chose.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Choices {
    /// `[positions, top_k]`, the best first.
    pub(crate) experts: Vec<u16>,
    /// `[positions]`: by how much the last chosen score is above the best other one;
    /// empty where that is not known.
    pub(crate) margins: Vec<f32>,
}

impl Choices {
    /// Adds the choices for some more tokens.
    pub(crate) fn push(&mut self, router: &Router, routes: &Routes) {
        let experts = routes.experts.iter();
        self.experts.extend(experts.map(|expert| narrow(*expert)));
        let width = usize::try_from(router.experts).unwrap_or(usize::MAX);
        if let Some(form) = &router.form {
            let logits = routes.logits.chunks_exact(width);
            let tokens = logits.zip(routes.experts.chunks_exact(routes.top_k));
            let margins = tokens.map(|(logits, chosen)| margin(logits, chosen, form));
            self.margins.extend(margins);
        }
    }
}

/// An expert as it is kept. A manifest allows 2^12 of them.
pub(crate) fn narrow(expert: u32) -> u16 {
    u16::try_from(expert).expect("a layer has fewer than 2^16 experts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_kept_as_its_best_and_the_mass_of_the_rest() {
        let mut rows = Rows {
            top: 2,
            ..Rows::default()
        };
        rows.push(&[1.0, 3.0, 3.0, 0.0], Some(0));
        rows.push(&[0.0, 0.0, 0.0, 0.0], None);
        let kept = rows.get(0);
        assert_eq!((kept.ids, kept.logits), (&[1, 2][..], &[3.0, 3.0][..]));
        assert_eq!(kept.next_logit, 1.0);
        let mass = |x: f64| (x - kept.log_norm).exp();
        let sum = 2.0 * mass(3.0) + kept.log_tail.exp();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
        let kept = rows.get(1);
        assert_eq!(kept.ids, [0, 1]);
        assert!((kept.log_tail - 0.5f64.ln()).abs() < 1e-12);
    }
}
