//! Numbers for values: an index, and how often it was used before.
//!
//! A number is `generation << 32 | index`. Removing a value raises the generation of its
//! place, so the number of a value that is gone names nothing, and a place whose generations
//! are used up is not used again. Generations start at a number drawn for each table: two
//! copies of the library in one process do not take each other's handles for their own.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Values at a time: far more than memory has room for.
const MAX_VALUES: u32 = 1 << 16;

#[derive(Debug)]
struct Place<T> {
    /// Of the value that is here, or of the next one; never 0.
    generation: u32,
    value: Option<Arc<T>>,
}

/// Values by number.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    first_generation: u32,
    places: Vec<Place<T>>,
    /// Indices of places that may be used again.
    free: Vec<u32>,
}

impl<T> Handles<T> {
    /// None yet.
    pub(crate) fn new() -> Handles<T> {
        let drawn = RandomState::new().hash_one(0) >> 33;
        Handles {
            // At most 2^31, so that a place serves for as many values more.
            first_generation: u32::try_from(drawn).unwrap_or(0).saturating_add(1),
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    /// A number for `value`, which is never 0; none if there are too many.
    pub(crate) fn insert(&mut self, value: Arc<T>) -> Option<u64> {
        let at = self.free.pop().or_else(|| {
            let at = u32::try_from(self.places.len()).ok()?;
            let generation = self.first_generation;
            (at < MAX_VALUES).then(|| {
                self.places.push(Place {
                    generation,
                    value: None,
                });
                at
            })
        })?;
        let place = &mut self.places[at as usize];
        place.value = Some(value);
        Some(u64::from(place.generation) << 32 | u64::from(at))
    }

    /// The value with this number.
    pub(crate) fn get(&self, handle: u64) -> Option<Arc<T>> {
        let (at, generation) = parts(handle);
        let place = self.places.get(at as usize)?;
        let value = place.value.as_ref()?;
        (place.generation == generation).then(|| Arc::clone(value))
    }

    /// Takes the value with this number away; the number is no value's from now on.
    pub(crate) fn remove(&mut self, handle: u64) -> Option<Arc<T>> {
        let value = self.get(handle)?;
        let (at, generation) = parts(handle);
        let place = &mut self.places[at as usize];
        place.value = None;
        if let Some(next) = generation.checked_add(1) {
            place.generation = next;
            self.free.push(at);
        }
        Some(value)
    }
}

/// Index and generation.
fn parts(handle: u64) -> (u32, u32) {
    let [low, high] = [handle & u64::from(u32::MAX), handle >> 32];
    // Both have 32 bits.
    let part = |bits: u64| u32::try_from(bits).unwrap_or(u32::MAX);
    (part(low), part(high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_gone_names_nothing_though_its_place_is_used_again() {
        let mut handles = Handles::new();
        let first = handles.insert(Arc::new('a')).unwrap();
        assert_eq!(handles.remove(first).as_deref(), Some(&'a'));
        let second = handles.insert(Arc::new('b')).unwrap();
        assert_eq!(parts(first).0, parts(second).0);
        assert_ne!(first, second);
        assert_eq!((handles.get(first), handles.remove(first)), (None, None));
        assert_eq!(handles.get(second).as_deref(), Some(&'b'));
    }

    #[test]
    fn numbers_that_were_never_given_out_name_nothing() {
        let mut handles = Handles::new();
        let handle = handles.insert(Arc::new(())).unwrap();
        for foreign in [
            0,
            1,
            u64::MAX,
            handle + 1,
            handle ^ 1 << 32,
            handle ^ 1 << 63,
        ] {
            assert!(handles.get(foreign).is_none(), "{foreign:x}");
            assert!(handles.remove(foreign).is_none(), "{foreign:x}");
        }
        let other = Handles::<()>::new();
        assert!(other.get(handle).is_none());
    }

    #[test]
    fn a_place_whose_generations_are_used_up_is_left_alone() {
        let mut handles = Handles::new();
        handles.first_generation = u32::MAX;
        let last = handles.insert(Arc::new(())).unwrap();
        handles.remove(last).unwrap();
        let next = handles.insert(Arc::new(())).unwrap();
        assert_eq!(parts(next).0, 1);
        assert!(handles.get(last).is_none());
    }

    #[test]
    fn there_is_an_end_to_them() {
        let mut handles = Handles::new();
        let value = Arc::new(());
        for _ in 0..MAX_VALUES {
            assert!(handles.insert(Arc::clone(&value)).is_some_and(|id| id != 0));
        }
        assert_eq!(handles.insert(value), None);
    }
}
