//! As much of the Protocol Buffers wire format as Chakra needs: fields of a message one after another, every length checked
//! before it is used. It knows no message.

/// A field's value. Groups, which nobody has written for a decade, end the message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// A whole number, if it is one. Negative numbers are written as large ones.
    pub fn integer(self) -> Option<i64> {
        match self {
            Value::Varint(number) => Some(number as i64),
            _ => None,
        }
    }

    pub fn text(self) -> Option<&'a str> {
        match self {
            Value::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// Whole numbers of a repeated field, packed or single.
    pub fn integers(self, into: &mut Vec<u64>) {
        match self {
            Value::Varint(number) => into.push(number),
            Value::Bytes(mut bytes) => {
                while let Some(number) = varint(&mut bytes) {
                    into.push(number);
                }
            }
            _ => {}
        }
    }
}

/// The fields of a message: each with its number, or none where the bytes are not a message.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
    /// Whether the bytes up to now were a message.
    pub sound: bool,
}

impl<'a> Fields<'a> {
    pub fn of(message: &'a [u8]) -> Fields<'a> {
        Fields { rest: message, sound: true }
    }

    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let tag = varint(&mut self.rest)?;
        let value = match tag & 7 {
            0 => Value::Varint(varint(&mut self.rest)?),
            1 => Value::Fixed64(u64::from_le_bytes(take(&mut self.rest, 8)?.try_into().ok()?)),
            2 => Value::Bytes(delimited(&mut self.rest)?),
            5 => Value::Fixed32(u32::from_le_bytes(take(&mut self.rest, 4)?.try_into().ok()?)),
            _ => return None,
        };
        // Numbers of fields begin with one.
        (tag >> 3 > 0).then_some((tag >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Value<'a>);

    fn next(&mut self) -> Option<(u64, Value<'a>)> {
        if self.rest.is_empty() || !self.sound {
            return None;
        }
        let field = self.field();
        self.sound = field.is_some();
        field
    }
}

/// A number in groups of seven bits, the least first; none if it is cut off or too long.
pub(super) fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    // Ten groups hold 64 bits.
    for (place, byte) in bytes.iter().take(10).enumerate() {
        number |= u64::from(byte & 0x7f).checked_shl(7 * place as u32)?;
        if byte & 0x80 == 0 {
            *bytes = &bytes[place + 1..];
            return Some(number);
        }
    }
    None
}

/// Bytes after their length.
pub(super) fn delimited<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let mut rest = *bytes;
    let length = usize::try_from(varint(&mut rest)?).ok()?;
    let value = take(&mut rest, length)?;
    *bytes = rest;
    Some(value)
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (value, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(value)
}

#[cfg(test)]
pub(super) mod write {
    //! The other way round, for tests.

    pub fn varint(mut number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    pub fn integer(field: u64, number: u64) -> Vec<u8> {
        [varint(field << 3), varint(number)].concat()
    }

    pub fn delimited(bytes: &[u8]) -> Vec<u8> {
        [varint(bytes.len() as u64), bytes.to_vec()].concat()
    }

    pub fn bytes(field: u64, bytes: &[u8]) -> Vec<u8> {
        [varint(field << 3 | 2), delimited(bytes)].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_of_all_kinds_are_read() {
        let mut message = write::integer(1, u64::MAX);
        message.extend(write::bytes(2, b"name"));
        message.extend([0x1d, 1, 0, 0, 0, 0x21, 2, 0, 0, 0, 0, 0, 0, 0]);
        let mut fields = Fields::of(&message);
        let all: Vec<_> = fields.by_ref().collect();
        assert!(fields.sound);
        let expected = [
            (1, Value::Varint(u64::MAX)),
            (2, Value::Bytes(b"name")),
            (3, Value::Fixed32(1)),
            (4, Value::Fixed64(2)),
        ];
        assert_eq!(all, expected);
        assert_eq!(all[0].1.integer(), Some(-1));
        // Any shorter message is refused, except between fields.
        let ends = [0, 11, 17, 22];
        for length in (0..message.len()).filter(|length| !ends.contains(length)) {
            let mut fields = Fields::of(&message[..length]);
            assert!(fields.by_ref().count() < 4 && !fields.sound, "{length}");
        }
    }

    #[test]
    fn lengths_beyond_the_end_and_endless_numbers_are_refused() {
        for wrong in
            [&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f][..], &[0xff; 11], &[0x08], &[0x00, 0x01]]
        {
            let mut fields = Fields::of(wrong);
            assert_eq!(fields.by_ref().count(), 0, "{wrong:?}");
            assert!(!fields.sound, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn numbers_are_read_as_they_were_written(number in any::<u64>()) {
            let bytes = write::varint(number);
            prop_assert_eq!(varint(&mut &bytes[..]), Some(number));
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Fields::of(&bytes).count();
        }
    }
}
