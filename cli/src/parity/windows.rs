//! A text as prompts: ids cut into windows that are run one by one.

use estream_schemas::digest::Digest;

/// Token ids in windows of one length; the last may be shorter. No window is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    ids: Vec<u32>,
    window: usize,
}

/// A position of a window, both counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub(crate) struct Place {
    pub(crate) window: usize,
    pub(crate) position: usize,
}

impl Windows {
    /// Fewest tokens of a window: one to predict from, and one to predict.
    pub(crate) const MIN: usize = 2;

    /// `ids` that have been cut already.
    ///
    /// # Panics
    /// If `window` is less than [`Windows::MIN`].
    pub(crate) fn new(ids: Vec<u32>, window: usize) -> Windows {
        assert!(window >= Windows::MIN, "a window predicts something");
        Windows { ids, window }
    }

    /// Cuts `ids` into windows of `window` tokens, at most `max` in all. Each begins with
    /// `bos`, if there is one, because each is a prompt of its own.
    pub(crate) fn cut(ids: &[u32], bos: Option<u32>, window: usize, max: usize) -> Windows {
        let own = window - bos.iter().len();
        let pieces = ids.chunks(own);
        let with_bos = pieces.flat_map(|piece| bos.into_iter().chain(piece.iter().copied()));
        Windows::new(with_bos.take(max).collect(), window)
    }

    /// All ids, window after window.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Tokens of a window.
    pub(crate) fn window(&self) -> usize {
        self.window
    }

    /// The windows.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.ids.chunks(self.window)
    }

    /// Where id `index` of all is.
    pub(crate) fn place(&self, index: usize) -> Place {
        Place {
            window: index / self.window,
            position: index % self.window,
        }
    }

    /// Which id of all is at `place`.
    pub(crate) fn index(&self, place: Place) -> usize {
        place.window * self.window + place.position
    }

    /// The token that follows id `index` in its window.
    pub(crate) fn next(&self, index: usize) -> Option<u32> {
        let next = index + 1;
        let same_window = !next.is_multiple_of(self.window);
        self.ids.get(next).copied().filter(|_| same_window)
    }

    /// The BLAKE3 of all ids as little-endian words of 32 bits.
    pub(crate) fn digest(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        for id in &self.ids {
            hasher.update(&id.to_le_bytes());
        }
        Digest(*hasher.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_is_a_prompt_and_predicts_nothing_of_the_next() {
        let windows = Windows::cut(&[1, 2, 3, 4, 5], None, 2, 100);
        let all: Vec<&[u32]> = windows.iter().collect();
        assert_eq!(all, [&[1, 2][..], &[3, 4], &[5]]);
        let next: Vec<_> = (0..5).map(|index| windows.next(index)).collect();
        assert_eq!(next, [Some(2), None, Some(4), None, None]);
        let (window, position) = (1, 1);
        assert_eq!(windows.place(3), Place { window, position });
        assert_eq!(windows.index(Place { window, position }), 3);

        let windows = Windows::cut(&[1, 2, 3, 4, 5], Some(9), 3, 100);
        let all: Vec<&[u32]> = windows.iter().collect();
        assert_eq!(all, [&[9, 1, 2][..], &[9, 3, 4], &[9, 5]]);
        let windows = Windows::cut(&[1, 2, 3, 4, 5], Some(9), 3, 5);
        assert_eq!(windows.ids(), [9, 1, 2, 9, 3]);
    }
}
