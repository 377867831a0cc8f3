//! What a caller's pointers may be read or written as, once null, unaligned and absurd ones are
//! refused. What is left is the caller's promise.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr;

use crate::abi::{Info, Options, Request};
use crate::failure::Failure;

/// The largest struct of a later version. A size beyond it was never set.
const MAX_STRUCT_BYTES: usize = 4096;

/// A struct of the ABI: it starts with a `usize` that states its size, and every member may be
/// all zeros.
///
/// # Safety
/// All of that is so, it has no `Drop`, and all its bytes may be written over.
pub(super) unsafe trait Stated: Copy {}

// SAFETY: pointers may be null, functions are optional, the rest are integers.
unsafe impl Stated for Options {}
// SAFETY: as for `Options`.
unsafe impl Stated for Request {}
// SAFETY: all are integers.
unsafe impl Stated for Info {}

fn check<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    match (pointer.is_null(), pointer.is_aligned()) {
        (true, _) => Err(Failure::usage(format!("{name} is NULL"))),
        (_, false) => Err(Failure::usage(format!("{name} is not aligned"))),
        _ => Ok(()),
    }
}

/// A string, or none if it is null.
///
/// # Safety
/// Unless it is null, it ends with a NUL and nobody changes it for `'a`.
pub(super) unsafe fn text<'a>(pointer: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller promises it.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) })
}

/// A copy of [`text`], which must be UTF-8.
///
/// # Safety
/// As [`text`].
pub(super) unsafe fn utf8(pointer: *const c_char, name: &str) -> Result<Option<String>, Failure> {
    // SAFETY: the caller promises it.
    let text = unsafe { text(pointer) };
    let text = text.map(|text| text.to_str().map(str::to_owned));
    let text = text.transpose();
    text.map_err(|_| Failure::usage(format!("{name} is not UTF-8")))
}

/// Elements of the caller's, of which there is at least one.
///
/// # Safety
/// There are `count` of them, and nobody changes them for `'a`.
pub(super) unsafe fn slice<'a, T: Copy>(
    pointer: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    check(pointer, name)?;
    if count == 0 {
        return Err(Failure::usage(format!("{name} is empty")));
    }
    if count > isize::MAX.unsigned_abs() / size_of::<T>() {
        let text = format!("{name} cannot have {count} elements");
        return Err(Failure::usage(text));
    }
    // SAFETY: neither null nor unaligned nor too long, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Bytes that a struct of the caller's states to have.
///
/// # Safety
/// Its first member can be read.
unsafe fn size<T: Stated>(pointer: *const T, name: &str) -> Result<usize, Failure> {
    check(pointer, name)?;
    // SAFETY: it is aligned for a T, which starts with a `usize`, and the caller promises the rest.
    let size = unsafe { pointer.cast::<usize>().read() };
    match (size_of::<usize>()..=MAX_STRUCT_BYTES).contains(&size) {
        true => Ok(size),
        false => Err(Failure::usage(format!(
            "{name}->size is {size}; set it to sizeof(estream_{name})"
        ))),
    }
}

/// A struct of this version from one of any version; all zeros if it is null. Members that the
/// caller does not know are zeros, and ones that this version does not know must be.
///
/// # Safety
/// Unless it is null, as many bytes as it states can be read.
pub(super) unsafe fn sized<T: Stated>(pointer: *const T, name: &str) -> Result<T, Failure> {
    let mut copy = MaybeUninit::<T>::zeroed();
    if !pointer.is_null() {
        // SAFETY: the caller promises more than that.
        let stated = unsafe { size(pointer, name) }?;
        let common = stated.min(size_of::<T>());
        let bytes = pointer.cast::<u8>();
        // SAFETY: both have `common` bytes, and they are not the same.
        unsafe { ptr::copy_nonoverlapping(bytes, copy.as_mut_ptr().cast(), common) };
        for at in common..stated {
            let byte = bytes.wrapping_add(at);
            // SAFETY: the caller promises `stated` bytes.
            if unsafe { byte.read() } != 0 {
                return Err(Failure::usage(format!(
                    "{name} asks for something that this version of estream does not know"
                )));
            }
        }
    }
    // SAFETY: every member is either zeros, which a T may have, or the caller's.
    Ok(unsafe { copy.assume_init() })
}

/// Writes the members of `value` that the caller's struct has, zeros to those that this version
/// does not know, and leaves the size as it is.
///
/// # Safety
/// As many bytes as the struct states can be read and written.
pub(super) unsafe fn write_sized<T: Stated>(
    pointer: *mut T,
    value: &T,
    name: &str,
) -> Result<(), Failure> {
    // SAFETY: the caller promises more than that.
    let stated = unsafe { size(pointer, name) }?;
    let common = stated.min(size_of::<T>());
    let (from, to) = (ptr::from_ref(value).cast::<u8>(), pointer.cast::<u8>());
    let first = size_of::<usize>();
    let (source, target) = (from.wrapping_add(first), to.wrapping_add(first));
    // SAFETY: both have `common` bytes, `first` is at most that, and they are not the same.
    unsafe { ptr::copy_nonoverlapping(source, target, common - first) };
    let rest = to.wrapping_add(common);
    // SAFETY: the caller promises `stated` bytes.
    unsafe { ptr::write_bytes(rest, 0, stated - common) };
    Ok(())
}

/// A place for one value.
pub(super) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// # Safety
    /// Unless it is null or unaligned, a T can be written there as long as this lives.
    pub(super) unsafe fn new(pointer: *mut T, name: &str) -> Result<Out<T>, Failure> {
        check(pointer, name).map(|()| Out(pointer))
    }

    pub(super) fn write(&self, value: T) {
        // SAFETY: promised to `new`.
        unsafe { self.0.write(value) };
    }
}

/// Room for elements, and a place for how many are needed.
pub(super) struct Buffer<T> {
    start: *mut T,
    capacity: usize,
    needed: Option<Out<usize>>,
}

impl<T: Copy> Buffer<T> {
    /// Errors if `needed` is unaligned; it may be null. `start` is looked at when it is filled.
    ///
    /// # Safety
    /// Unless they are null or unaligned, `capacity` elements can be written to `start` and a size
    /// to `needed` as long as this lives.
    pub(super) unsafe fn new(
        start: *mut T,
        capacity: usize,
        needed: *mut usize,
    ) -> Result<Buffer<T>, Failure> {
        let needed = match needed.is_null() {
            true => None,
            // SAFETY: the caller promises it.
            false => Some(unsafe { Out::new(needed, "needed") }?),
        };
        Ok(Buffer {
            start,
            capacity,
            needed,
        })
    }

    /// Says how many there are, and copies all of them or none.
    pub(super) fn fill(&self, values: &[T]) -> Result<(), Failure> {
        if let Some(needed) = &self.needed {
            needed.write(values.len());
        }
        check(self.start, "buffer")?;
        if self.capacity < values.len() {
            return Err(Failure::usage(format!(
                "the buffer has room for {}, and {} are needed",
                self.capacity,
                values.len()
            )));
        }
        // SAFETY: promised to `new`; the values are estream's, so the two do not overlap.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), self.start, values.len()) };
        Ok(())
    }
}

impl Buffer<u8> {
    /// [`Buffer::fill`] with a text and a NUL.
    pub(super) fn fill_text(&self, text: &str) -> Result<(), Failure> {
        self.fill(&[text.as_bytes(), b"\0"].concat())
    }
}
