//! What a timeline says of records and of steps.

use super::timeline::{Doing, Event};

/// What a timeline does not say of a layer that has experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// Its place in the program.
    pub layer: u64,
    /// Its records.
    pub records: usize,
    /// Bytes of one.
    pub record_bytes: u64,
}

/// Records of a step, or of a request. What was read is either in time, late or wasted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Executed.
    pub routed: u64,
    /// Their bytes.
    pub routed_bytes: u64,
    /// Read.
    pub read: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Read and executed, and there before the executor waited for them.
    pub in_time: u64,
    /// Read and executed, and there only while the executor waited for them.
    pub late: u64,
    /// Read and not executed.
    pub wasted: u64,
}

/// A layer that has experts, of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The chunk, counted from 0.
    pub chunk: usize,
    /// The layer's place in the program.
    pub layer: u64,
    /// What comes before its experts, since those of the layer before.
    pub before_ns: u64,
    /// Its experts.
    pub experts_ns: u64,
    /// Waiting for them.
    pub wait_ns: u64,
    /// Its records.
    pub counts: Counts,
}

/// The steps of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// In order.
    pub steps: Vec<Step>,
    /// Different records among those that were read.
    pub distinct: u64,
}

/// What became of a record in a step.
#[derive(Clone, Copy, Default)]
struct Fate {
    reads: u64,
    published_ns: u64,
    is_late: bool,
    is_run: bool,
}

impl Tally {
    /// Of a request through `layers`, once a chunk.
    pub fn of(events: &[Event], layers: &[LayerShape]) -> Tally {
        let steps = events.iter().map(|event| event.step + 1).max().unwrap_or(0);
        let mut tally = Tally::default();
        let mut fates: Vec<Vec<Fate>> = Vec::new();
        for (step, shape) in (0..steps).zip(layers.iter().cycle()) {
            fates.push(vec![Fate::default(); shape.records]);
            tally.steps.push(Step {
                chunk: step / layers.len(),
                layer: shape.layer,
                ..Step::default()
            });
        }
        for event in events {
            if let Some(step) = tally.steps.get_mut(event.step) {
                step.add(event);
                for fate in part(&mut fates[event.step], event) {
                    fate.add(event);
                }
            }
        }
        for event in events.iter().filter(|event| event.doing == Doing::Wait) {
            if let Some(fates) = fates.get_mut(event.step) {
                for fate in part(fates, event) {
                    fate.is_late |= fate.published_ns > event.start_ns;
                }
            }
        }
        for ((step, fates), shape) in tally
            .steps
            .iter_mut()
            .zip(&fates)
            .zip(layers.iter().cycle())
        {
            for fate in fates {
                step.counts.add(*fate, shape.record_bytes);
            }
        }
        for (at, shape) in layers.iter().enumerate() {
            let is_read = |record: &usize| {
                let mut chunks = fates.iter().skip(at).step_by(layers.len());
                chunks.any(|fates| fates[*record].reads > 0)
            };
            tally.distinct += (0..shape.records).filter(is_read).count() as u64;
        }
        tally
    }

    /// All steps together.
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        for Step { counts, .. } in &self.steps {
            total.routed += counts.routed;
            total.routed_bytes += counts.routed_bytes;
            total.read += counts.read;
            total.read_bytes += counts.read_bytes;
            total.in_time += counts.in_time;
            total.late += counts.late;
            total.wasted += counts.wasted;
        }
        total
    }
}

/// The records of an event, of those there are.
fn part<'a>(fates: &'a mut [Fate], event: &Event) -> impl Iterator<Item = &'a mut Fate> {
    fates.iter_mut().skip(event.first).take(event.records)
}

impl Step {
    fn add(&mut self, event: &Event) {
        let time = match event.doing {
            Doing::Layer => &mut self.before_ns,
            Doing::Experts => &mut self.experts_ns,
            Doing::Wait => &mut self.wait_ns,
            Doing::Read | Doing::Verify | Doing::Head | Doing::Slot => return,
        };
        *time += event.end_ns - event.start_ns;
    }
}

impl Fate {
    fn add(&mut self, event: &Event) {
        match event.doing {
            Doing::Read => self.reads += 1,
            Doing::Verify => self.published_ns = event.end_ns,
            Doing::Experts => self.is_run = true,
            Doing::Layer | Doing::Head | Doing::Wait | Doing::Slot => {}
        }
    }
}

impl Counts {
    fn add(&mut self, fate: Fate, record_bytes: u64) {
        let routed = u64::from(fate.is_run);
        self.routed += routed;
        self.routed_bytes += routed * record_bytes;
        self.read += fate.reads;
        self.read_bytes += fate.reads * record_bytes;
        // One that stayed in memory was not read for this.
        let used = routed.min(fate.reads);
        self.wasted += fate.reads - used;
        match fate.is_late {
            true => self.late += used,
            false => self.in_time += used,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: [LayerShape; 2] = [
        LayerShape {
            layer: 1,
            records: 4,
            record_bytes: 100,
        },
        LayerShape {
            layer: 2,
            records: 2,
            record_bytes: 1000,
        },
    ];

    fn event(
        doing: Doing,
        step: usize,
        (first, records): (usize, usize),
        (start_ns, end_ns): (u64, u64),
    ) -> Event {
        Event {
            doing,
            thread: 0,
            step,
            first,
            records,
            start_ns,
            end_ns,
        }
    }

    /// Two chunks. In the first step records 0 and 1 are there early, and 1 has no routes; 2 and 3
    /// come while the executor waits for 2, which is the last with routes.
    fn by_hand() -> Vec<Event> {
        vec![
            event(Doing::Read, 0, (0, 2), (0, 8)),
            event(Doing::Verify, 0, (0, 2), (8, 9)),
            event(Doing::Layer, 0, (0, 0), (0, 10)),
            event(Doing::Experts, 0, (0, 1), (10, 13)),
            event(Doing::Read, 0, (2, 2), (9, 20)),
            event(Doing::Verify, 0, (2, 2), (20, 21)),
            event(Doing::Wait, 0, (2, 1), (14, 22)),
            event(Doing::Experts, 0, (2, 1), (22, 24)),
            // Nothing of the second layer is read: it stayed.
            event(Doing::Layer, 1, (0, 0), (24, 30)),
            event(Doing::Experts, 1, (1, 1), (30, 35)),
            event(Doing::Head, 1, (0, 0), (35, 40)),
            event(Doing::Layer, 2, (0, 0), (40, 45)),
            // What comes while another is waited for is in time.
            event(Doing::Wait, 2, (1, 1), (45, 50)),
            event(Doing::Read, 2, (1, 1), (41, 48)),
            event(Doing::Read, 2, (2, 1), (42, 48)),
            event(Doing::Verify, 2, (1, 1), (48, 49)),
            event(Doing::Verify, 2, (2, 1), (48, 49)),
            event(Doing::Experts, 2, (1, 1), (50, 51)),
            event(Doing::Experts, 2, (2, 1), (51, 52)),
            event(Doing::Layer, 3, (0, 0), (52, 60)),
            event(Doing::Head, 3, (0, 0), (60, 70)),
        ]
    }

    #[test]
    fn steps_are_those_of_a_timeline_made_by_hand() {
        let events = by_hand();
        let tally = Tally::of(&events, &LAYERS);
        let steps: Vec<_> = tally
            .steps
            .iter()
            .map(|step| {
                let place = (step.chunk, step.layer);
                let Counts {
                    routed,
                    read,
                    in_time,
                    late,
                    wasted,
                    ..
                } = step.counts;
                let times = (step.before_ns, step.experts_ns, step.wait_ns);
                (place, times, [routed, read, in_time, late, wasted])
            })
            .collect();
        assert_eq!(
            steps,
            [
                ((0, 1), (10, 5, 8), [2, 4, 1, 1, 2]),
                ((0, 2), (6, 5, 0), [1, 0, 0, 0, 0]),
                ((1, 1), (5, 2, 5), [2, 2, 1, 1, 0]),
                ((1, 2), (8, 0, 0), [0, 0, 0, 0, 0]),
            ]
        );
        let total = tally.total();
        assert_eq!((total.read_bytes, total.routed_bytes), (600, 400 + 1000));
        // Records 1 and 2 of the first layer were read by both chunks.
        assert_eq!((total.read, tally.distinct), (6, 4));
        let backwards: Vec<_> = events.into_iter().rev().collect();
        assert_eq!(Tally::of(&backwards, &LAYERS), tally);
    }

    #[test]
    fn nothing_happens_where_there_are_no_experts() {
        let head = [event(Doing::Head, 0, (0, 0), (0, 9))];
        assert_eq!(Tally::of(&head, &[]), Tally::default());
        assert_eq!(Tally::of(&[], &LAYERS), Tally::default());
    }
}
