//! Which record is in which slot, and what may be done with it (paper §3.3).
//!
//! ```text
//! Available ──reserve──► Filling ──publish──► Ready ──bind──► InUse(n) ──complete──► Available
//!     ▲                     │                   │                              (the last one)
//!     └───────abandon───────┴──────retire───────┘
//! ```
//!
//! There is no other way from one state to another. What proves a state cannot be copied:
//! a [`Reserved`] is the only one of its slot, and a record can be used only through
//! a [`Binding`], which its slot outlives. Every reservation has a generation of its own, so
//! that a [`Loaded`] of an earlier one is told from the present.

/// A record of a request: the step of the pass it belongs to, and its place in storage order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) step: usize,
    pub(crate) record: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Available,
    Filling(Owner),
    Ready(Owner),
    InUse(Owner, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Slot {
    state: State,
    generation: u64,
}

/// A slot that is being filled, by the one who holds this.
#[derive(Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Reserved {
    slot: usize,
    generation: u64,
}

/// A slot that was whole when this was given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Loaded {
    slot: usize,
    generation: u64,
}

/// The right to use a slot's content, which stays until this is given back.
#[derive(Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Binding {
    slot: usize,
    generation: u64,
}

impl Reserved {
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }
}

impl Binding {
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }
}

/// The slot has another owner by now, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stale;

/// The slots of an arena.
#[derive(Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Residency {
    slots: Vec<Slot>,
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "what proves a state is given up with the state"
)]
impl Residency {
    /// `count` slots, all available.
    pub(crate) fn new(count: usize) -> Residency {
        let slot = Slot {
            state: State::Available,
            generation: 0,
        };
        Residency {
            slots: vec![slot; count],
        }
    }

    pub(crate) fn is_available(&self, slot: usize) -> bool {
        self.slots[slot].state == State::Available
    }

    /// Slots that nobody has, ascending.
    pub(crate) fn available(&self) -> impl Iterator<Item = usize> {
        (0..self.slots.len()).filter(|slot| self.is_available(*slot))
    }

    /// Available → Filling.
    ///
    /// Errors if the slot has an owner.
    pub(crate) fn reserve(&mut self, slot: usize, owner: Owner) -> Result<Reserved, Stale> {
        let at = &mut self.slots[slot];
        if at.state != State::Available {
            return Err(Stale);
        }
        at.state = State::Filling(owner);
        at.generation += 1;
        Ok(Reserved {
            slot,
            generation: at.generation,
        })
    }

    /// Filling → Ready: the record is whole and what it should be.
    pub(crate) fn publish(&mut self, reserved: Reserved) -> Loaded {
        let Reserved { slot, generation } = reserved;
        let owner = self.filling(slot, generation);
        self.slots[slot].state = State::Ready(owner);
        Loaded { slot, generation }
    }

    /// Filling → Available: the read has returned, and nobody will see what it brought.
    pub(crate) fn abandon(&mut self, reserved: Reserved) {
        let Reserved { slot, generation } = reserved;
        self.filling(slot, generation);
        self.slots[slot].state = State::Available;
    }

    /// Ready → Available: nobody needs the record.
    ///
    /// Errors if it is not there, or is in use.
    pub(crate) fn retire(&mut self, loaded: Loaded) -> Result<(), Stale> {
        let at = &mut self.slots[loaded.slot];
        match at.state {
            State::Ready(_) if at.generation == loaded.generation => {
                at.state = State::Available;
                Ok(())
            }
            _ => Err(Stale),
        }
    }

    /// Ready or InUse(n) → InUse(n + 1).
    ///
    /// Errors if the record is not there.
    pub(crate) fn bind(&mut self, loaded: Loaded) -> Result<Binding, Stale> {
        let Loaded { slot, generation } = loaded;
        let at = &mut self.slots[slot];
        let (owner, users) = match at.state {
            State::Ready(owner) => (owner, 0),
            State::InUse(owner, users) => (owner, users),
            State::Available | State::Filling(_) => return Err(Stale),
        };
        if at.generation != generation {
            return Err(Stale);
        }
        at.state = State::InUse(owner, users + 1);
        Ok(Binding { slot, generation })
    }

    /// InUse(n + 1) → InUse(n), and the last one → Available.
    pub(crate) fn complete(&mut self, binding: Binding) {
        let at = &mut self.slots[binding.slot];
        match at.state {
            State::InUse(owner, users) if at.generation == binding.generation => {
                at.state = match users {
                    0 | 1 => State::Available,
                    more => State::InUse(owner, more - 1),
                };
            }
            other => unreachable!("a binding of a slot that is {other:?}"),
        }
    }

    fn filling(&self, slot: usize, generation: u64) -> Owner {
        let at = self.slots[slot];
        match at.state {
            State::Filling(owner) if at.generation == generation => owner,
            other => unreachable!("a reservation of a slot that is {other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Owner = Owner { step: 0, record: 3 };
    const B: Owner = Owner { step: 1, record: 0 };

    #[test]
    fn a_slot_goes_round_and_is_nobodys_twice() {
        let mut table = Residency::new(2);
        let filling = table.reserve(1, A).unwrap();
        assert_eq!(table.reserve(1, B), Err(Stale));
        assert_eq!(table.available().collect::<Vec<_>>(), [0]);
        let loaded = table.publish(filling);
        assert_eq!(table.reserve(1, B), Err(Stale));
        let (first, second) = (table.bind(loaded).unwrap(), table.bind(loaded).unwrap());
        assert_eq!(table.retire(loaded), Err(Stale));
        table.complete(first);
        assert_eq!(table.reserve(1, B), Err(Stale));
        table.complete(second);
        assert!(table.is_available(1));
        // What was known of the record that is gone leads nowhere, also when the slot is full.
        assert_eq!(table.bind(loaded), Err(Stale));
        let again = table.reserve(1, B).unwrap();
        let again = table.publish(again);
        assert_eq!(table.bind(loaded), Err(Stale));
        assert_eq!(table.retire(loaded), Err(Stale));
        assert_eq!(table.retire(again), Ok(()));
        assert!(table.is_available(1));
    }

    #[test]
    fn what_was_not_published_is_never_seen() {
        let mut table = Residency::new(1);
        let filling = table.reserve(0, A).unwrap();
        let guess = Loaded {
            slot: 0,
            generation: filling.generation,
        };
        assert_eq!(table.bind(guess), Err(Stale));
        assert_eq!(table.retire(guess), Err(Stale));
        table.abandon(filling);
        assert!(table.is_available(0));
        assert_eq!(table.bind(guess), Err(Stale));
    }
}
