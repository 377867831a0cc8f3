//! Structs and codes that C knows too: declared once, with their bytes and their names in C.

/// A value as the bytes of a message.
pub trait Wire: Sized {
    /// How many.
    const BYTES: usize;
    /// Appends them.
    fn put(&self, out: &mut Vec<u8>);
    /// Takes them from the front; `None` if there are fewer, or they mean nothing.
    fn take(bytes: &mut &[u8]) -> Option<Self>;

    /// The bytes alone.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BYTES);
        self.put(&mut out);
        out
    }
}

/// A struct of `abi.h`.
pub trait Described: Wire {
    /// Its tag in C.
    const C_NAME: &'static str;
    /// Names and offsets of its fields.
    fn fields() -> Vec<(&'static str, usize)>;
}

macro_rules! wire_integer {
    ($($ty:ty)*) => {$(
        impl Wire for $ty {
            const BYTES: usize = size_of::<$ty>();

            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn take(bytes: &mut &[u8]) -> Option<$ty> {
                let (first, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(<$ty>::from_le_bytes(*first))
            }
        }
    )*};
}

wire_integer!(u16 u32);

impl<T: Wire + Copy + Default, const N: usize> Wire for [T; N] {
    const BYTES: usize = N * T::BYTES;

    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|item| item.put(out));
    }

    fn take(bytes: &mut &[u8]) -> Option<[T; N]> {
        let mut items = [T::default(); N];
        for item in &mut items {
            *item = T::take(bytes)?;
        }
        Some(items)
    }
}

macro_rules! wire {
    ($(
        $(#[$doc:meta])*
        $name:ident = $c_name:literal { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: $ty,)* }

        impl Wire for $name {
            const BYTES: usize = 0 $(+ <$ty as Wire>::BYTES)*;

            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn take(bytes: &mut &[u8]) -> Option<$name> {
                Some($name { $($field: Wire::take(bytes)?,)* })
            }
        }

        impl Described for $name {
            const C_NAME: &'static str = $c_name;

            fn fields() -> Vec<(&'static str, usize)> {
                let sizes = [$((stringify!($field), <$ty as Wire>::BYTES),)*];
                let place = |at: &mut usize, (name, bytes)| {
                    *at += bytes;
                    Some((name, *at - bytes))
                };
                sizes.into_iter().scan(0, place).collect()
            }
        }
    )*};
}

macro_rules! codes {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$code_doc:meta])* $code:ident = $value:literal as $c_name:literal,)* }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$code_doc])* $code = $value,)* }

        impl $name {
            /// Every one of them, with its name in C.
            pub const ALL: &'static [($name, &'static str)] = &[$(($name::$code, $c_name),)*];

            /// The number in a message.
            pub const fn code(self) -> u32 {
                self as u32
            }

            /// What a number means.
            pub fn from_code(code: u32) -> Option<$name> {
                let mut all = $name::ALL.iter();
                all.find(|known| known.0.code() == code).map(|known| known.0)
            }
        }
    )*};
}

pub(crate) use {codes, wire};
