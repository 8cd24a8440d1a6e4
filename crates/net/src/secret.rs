//! The job's secret: 32 bytes that every process of a job holds and nobody else does. This file knows
//! where a secret comes from and how it is kept out of logs; it does not know what it is used for.

use crate::error::{NetError, Result};
use ring::{
    digest,
    rand::{SecureRandom, SystemRandom},
};
use std::{fmt, fs, os::unix::fs::PermissionsExt};

/// Bytes of a secret.
const SECRET_BYTES: usize = 32;

/// A shorter text could be guessed by trying, off line, against one recorded handshake.
const MINIMUM_CHARACTERS: usize = 16;

/// A secret file is read up to here; more is a mistake in the path.
const MAXIMUM_FILE_BYTES: u64 = 64 * 1024;

/// The job's secret. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// A fresh secret from the system's generator.
    pub fn random() -> Result<Secret> {
        Ok(Secret(random_bytes()?))
    }

    /// A secret from text: 64 hexadecimal digits are the bytes themselves, any other text of at
    /// least 16 characters is hashed. `origin` names the source in errors.
    pub fn from_text(text: &str, origin: &str) -> Result<Secret> {
        let text = text.trim();
        let characters = text.chars().count();
        if characters < MINIMUM_CHARACTERS {
            return Err(NetError::SecretTooShort {
                origin: origin.to_string(),
                characters,
                minimum: MINIMUM_CHARACTERS,
            });
        }
        if let Some(bytes) = from_hex(text) {
            return Ok(Secret(bytes));
        }
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(b"paceline job secret\0");
        context.update(text.as_bytes());
        let mut bytes = [0; SECRET_BYTES];
        bytes.copy_from_slice(context.finish().as_ref());
        Ok(Secret(bytes))
    }

    /// The secret that `PACELINE_SECRET` holds, or that is in the file `PACELINE_SECRET_FILE` names.
    ///
    /// A file that others can read is used all the same (containers mount secrets that way), but
    /// `warn` is told.
    pub fn from_variables(
        variable: &dyn Fn(&str) -> Option<String>,
        warn: &mut dyn FnMut(String),
    ) -> Result<Secret> {
        if let Some(text) = variable("PACELINE_SECRET") {
            return Secret::from_text(&text, "PACELINE_SECRET");
        }
        let path = variable("PACELINE_SECRET_FILE").ok_or(NetError::SecretMissing)?;
        let unreadable = |source| NetError::SecretFile { path: path.clone(), source };
        let metadata = fs::metadata(&path).map_err(unreadable)?;
        if metadata.len() > MAXIMUM_FILE_BYTES {
            return Err(NetError::Oversized {
                what: "secret file",
                bytes: metadata.len(),
                limit: MAXIMUM_FILE_BYTES as usize,
            });
        }
        if metadata.permissions().mode() & 0o044 != 0 {
            warn(format!("{path} can be read by other users; `chmod 600 {path}` keeps it secret"));
        }
        let text = fs::read_to_string(&path).map_err(unreadable)?;
        Secret::from_text(&text, &path)
    }

    /// The form that `PACELINE_SECRET` takes, for handing it to a child process.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Bytes nobody can foresee.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NetError::NoRandomness)?;
    Ok(bytes)
}

fn from_hex(text: &str) -> Option<[u8; SECRET_BYTES]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * SECRET_BYTES {
        return None;
    }
    let mut bytes = [0; SECRET_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = (pair[0] as char).to_digit(16)?;
        let low = (pair[1] as char).to_digit(16)?;
        *byte = (high * 16 + low) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::HashMap, io::Write};

    fn read(entries: &[(&str, &str)]) -> (Result<Secret>, Vec<String>) {
        let entries: HashMap<String, String> =
            entries.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let mut warnings = Vec::new();
        let secret = Secret::from_variables(&|name| entries.get(name).cloned(), &mut |warning| {
            warnings.push(warning)
        });
        (secret, warnings)
    }

    #[test]
    fn a_secret_survives_its_variable_and_is_never_printed() {
        let secret = Secret::random().unwrap();
        let (again, _) = read(&[("PACELINE_SECRET", &secret.to_hex())]);
        assert!(again.unwrap() == secret);
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert!(Secret::random().unwrap() != secret);
    }

    #[test]
    fn any_long_text_is_a_secret_and_a_short_one_is_not() {
        let (first, _) = read(&[("PACELINE_SECRET", "correct horse battery")]);
        let (second, _) = read(&[("PACELINE_SECRET", "correct horse battery\n")]);
        let (third, _) = read(&[("PACELINE_SECRET", "correct horse batterz")]);
        assert!(first.as_ref().unwrap() == second.as_ref().unwrap());
        assert!(first.unwrap() != third.unwrap());
        let (short, _) = read(&[("PACELINE_SECRET", "short")]);
        assert!(matches!(short, Err(NetError::SecretTooShort { characters: 5, .. })));
        let (none, _) = read(&[]);
        assert!(matches!(none, Err(NetError::SecretMissing)));
    }

    #[test]
    fn a_file_others_can_read_is_used_with_a_warning() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "correct horse battery").unwrap();
        let path = file.path().to_str().unwrap().to_string();
        let (private, warnings) = read(&[("PACELINE_SECRET_FILE", &path)]);
        assert!(warnings.is_empty());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let (open, warnings) = read(&[("PACELINE_SECRET_FILE", &path)]);
        assert!(private.unwrap() == open.unwrap());
        assert_eq!(warnings.len(), 1);
        let (absent, _) = read(&[("PACELINE_SECRET_FILE", "/nowhere/at/all")]);
        assert!(matches!(absent, Err(NetError::SecretFile { .. })));
    }
}
