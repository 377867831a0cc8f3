//! Bringing the tensors that are there and the index that lists them together.

use std::cmp::Ordering;
use std::path::Path;

use super::super::error::AbsentTensor;
use super::super::{IngestError, Notice, SourceTensor, WeightFile};
use super::index::{Index, Place};

/// How many names an error or a notice lists.
const LISTED: usize = 16;
/// Bytes of two tensors that are compared at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Orders `tensors` by name and leaves one of each, the one that `index` means.
/// A tensor that the index lists must be where it says; one that it does not list
/// is kept with a notice, and so is a second copy left out.
pub(super) fn merge(
    index_path: &Path,
    index: &Index,
    mut tensors: Vec<SourceTensor>,
    files: &[WeightFile],
    notices: &mut Vec<Notice>,
) -> Result<Vec<SourceTensor>, IngestError> {
    tensors.sort_unstable_by(|a, b| (&a.name, a.file).cmp(&(&b.name, b.file)));
    let mut places = index.places.iter().peekable();
    let mut absent = Absent::default();
    let mut unlisted = vec![Listed::default(); files.len()];
    let mut repeated = vec![Listed::default(); files.len()];
    let mut compare = Compare::new(files);
    let mut unused: Vec<usize> = Vec::new();
    let mut first = 0;
    for copies in tensors.chunk_by(|a, b| a.name == b.name) {
        let [lead, ..] = copies else { continue };
        let mut listed = None;
        while let Some(place) = places.next_if(|place| *place.tensor <= *lead.name) {
            if (*place.tensor).cmp(&lead.name) == Ordering::Equal {
                listed = Some(place);
            } else {
                absent.push(index, place);
            }
        }
        let used = match listed {
            Some(place) => {
                let found = copies
                    .iter()
                    .position(|copy| copy.file == place.file as usize);
                if found.is_none() {
                    absent.push(index, place);
                }
                found.unwrap_or(0)
            }
            None => {
                unlisted[lead.file].push(&lead.name);
                0
            }
        };
        for (number, copy) in copies.iter().enumerate() {
            if number != used {
                compare.require_equal(&copies[used], copy)?;
                repeated[copy.file].push(&copy.name);
                unused.push(first + number);
            }
        }
        first += copies.len();
    }
    for place in places {
        absent.push(index, place);
    }
    if absent.count > 0 {
        return Err(IngestError::AbsentTensors {
            path: index_path.to_owned(),
            count: absent.count,
            tensors: absent.first,
        });
    }
    for ((file, unlisted), repeated) in files.iter().zip(unlisted).zip(repeated) {
        if unlisted.count > 0 {
            notices.push(Notice::Unlisted {
                file: file.name.clone(),
                count: unlisted.count,
                tensors: unlisted.first,
            });
        }
        if repeated.count > 0 {
            notices.push(Notice::Repeated {
                file: file.name.clone(),
                count: repeated.count,
                tensors: repeated.first,
            });
        }
    }
    let mut unused = unused.into_iter().peekable();
    let mut number = 0;
    tensors.retain(|_| {
        let keep = unused.next_if_eq(&number).is_none();
        number += 1;
        keep
    });
    Ok(tensors)
}

#[derive(Default)]
struct Absent {
    count: usize,
    first: Vec<AbsentTensor>,
}

impl Absent {
    fn push(&mut self, index: &Index, place: &Place) {
        self.count += 1;
        if self.first.len() < LISTED {
            let file = index.files.get(place.file as usize);
            self.first.push(AbsentTensor {
                name: place.tensor.to_string(),
                file: file.cloned().unwrap_or_default(),
            });
        }
    }
}

/// The names of some tensors of a file.
#[derive(Clone, Default)]
struct Listed {
    count: usize,
    first: Vec<String>,
}

impl Listed {
    fn push(&mut self, name: &str) {
        self.count += 1;
        if self.first.len() < LISTED {
            self.first.push(name.to_owned());
        }
    }
}

/// Compares tensors in chunks.
struct Compare<'a> {
    files: &'a [WeightFile],
    chunks: [Vec<u8>; 2],
}

impl<'a> Compare<'a> {
    fn new(files: &'a [WeightFile]) -> Compare<'a> {
        let chunks = [Vec::new(), Vec::new()];
        Compare { files, chunks }
    }

    /// Refuses unless `used` and `other`, of one name, are one tensor.
    fn require_equal(
        &mut self,
        used: &SourceTensor,
        other: &SourceTensor,
    ) -> Result<(), IngestError> {
        let (used_file, other_file) = (&self.files[used.file], &self.files[other.file]);
        let conflict = || IngestError::Conflict {
            tensor: used.name.clone(),
            first: used_file.path.clone(),
            second: other_file.path.clone(),
        };
        if (used.dtype, &used.shape) != (other.dtype, &other.shape) {
            return Err(conflict());
        }
        let mut done = 0;
        while done < used.bytes {
            let left = usize::try_from(used.bytes - done).unwrap_or(usize::MAX);
            let count = left.min(CHUNK_BYTES);
            let [a, b] = &mut self.chunks;
            a.resize(count, 0);
            b.resize(count, 0);
            used_file.read_exact_at(used.offset + done, a)?;
            other_file.read_exact_at(other.offset + done, b)?;
            if a != b {
                return Err(conflict());
            }
            done += count as u64;
        }
        Ok(())
    }
}
