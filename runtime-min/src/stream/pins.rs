//! Records that are always in memory, each in memory of its own.

use estream_schemas::plan::is_pinned;

use crate::error::{RunError, index, zeros};
use crate::reader::{BundleReader, Verify};

const WHAT: &str = "expert weights";

/// Some records of each layer, or all of them.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    /// By layer and record; nothing where the record does not stay.
    layers: Vec<Vec<Vec<u8>>>,
}

impl Pins {
    /// Reads `pinned` records of each layer in storage order, each hashed before the next unless
    /// `verify` is [`Verify::Never`].
    pub(crate) fn load(
        reader: &BundleReader,
        verify: Verify,
        pinned: usize,
    ) -> Result<Pins, RunError> {
        let layers = reader.bundle().manifest().experts.layers.iter();
        let layers = layers.enumerate().map(|(at, layer)| {
            let record_bytes = index(WHAT, layer.record_bytes)?;
            let count = index(WHAT, layer.records())?;
            let records = (0..count).map(|record| {
                if !is_pinned(record, count, pinned) {
                    return Ok(Vec::new());
                }
                let mut bytes = zeros(WHAT, record_bytes)?;
                match verify {
                    Verify::Never => reader.read_record(at, record as u64, &mut bytes)?,
                    Verify::Always | Verify::FirstUse => {
                        reader.read_record_verified(at, record as u64, &mut bytes)?;
                    }
                }
                Ok(bytes)
            });
            records.collect()
        });
        let layers = layers.collect::<Result<_, RunError>>()?;
        Ok(Pins { layers })
    }

    /// The bytes of a record that stays; of any other there are none.
    pub(crate) fn record(&self, layer: usize, record: usize) -> &[u8] {
        let layer = self.layers.get(layer);
        layer
            .and_then(|layer| layer.get(record))
            .map_or(&[], Vec::as_slice)
    }
}
