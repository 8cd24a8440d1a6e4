//! How much room the file system has that processes share memory in, and what to do when it is full. Peers
//! that find it full die without a reason (SIGBUS), or wait for each other for ever.

use paceline_job::ByteSize;
use std::{ffi::CString, fmt, io, mem::MaybeUninit, os::unix::ffi::OsStrExt, path::Path};

/// Where Linux keeps it.
pub const FOLDER: &str = "/dev/shm";

/// Less than this is none: no segment of anybody's fits.
const FULL_BELOW: u64 = 1 << 20;

/// What there is in a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Not in use.
    pub free: u64,
    /// In all.
    pub size: u64,
}

impl Room {
    /// Of the file system that a folder is in.
    pub fn of(folder: &Path) -> io::Result<Room> {
        let path = CString::new(folder.as_os_str().as_bytes())?;
        let mut status = MaybeUninit::<libc::statvfs>::uninit();
        // SAFETY: the path ends with a zero, and the kernel fills the structure unless it fails.
        let status = unsafe {
            if libc::statvfs(path.as_ptr(), status.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            status.assume_init()
        };
        let bytes = |blocks: libc::fsblkcnt_t| blocks.saturating_mul(status.f_frsize);
        Ok(Room { free: bytes(status.f_bavail), size: bytes(status.f_blocks) })
    }

    /// What to tell whoever needs so many bytes in `folder`, if they are not there.
    pub fn shortage(self, folder: &Path, needed: u64) -> Option<String> {
        if self.free >= needed {
            return None;
        }
        let lack = format!("needs {} of shared memory", ByteSize(needed).rounded());
        Some(match folder.starts_with(FOLDER) {
            true => format!("{lack}, but {}", self.remedy(needed)),
            false => format!("{lack}, but {self} in {}: make room there", folder.display()),
        })
    }

    fn remedy(self, needed: u64) -> String {
        let used = self.size - self.free.min(self.size);
        let mebibytes = (used + needed).div_ceil(1 << 20).next_power_of_two();
        format!(
            "{self} in {FOLDER}: remove what nobody needs there, enlarge it (mount -o \
             remount,size={mebibytes}M {FOLDER}), or start the container with --shm-size={mebibytes}m"
        )
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} are left", ByteSize(self.free).rounded(), ByteSize(self.size).rounded())
    }
}

/// A hint for a program that failed, if this may be why: it said so, or there is no room at all.
pub fn hint(said: &str) -> Option<String> {
    let room = Room::of(Path::new(FOLDER)).ok()?;
    hint_about(said, room)
}

fn hint_about(said: &str, room: Room) -> Option<String> {
    let suspected = ["No space left on device", "Bus error", "SIGBUS"];
    let is_full = room.free < FULL_BELOW;
    let is_said = suspected.iter().any(|words| said.contains(words));
    // Whoever died has given back what it had, so there may be room again.
    let is_small = room.free < 64 * FULL_BELOW;
    (is_full || is_said && is_small)
        .then(|| format!("shared memory may be why: {}", room.remedy(64 * FULL_BELOW)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_that_of_the_file_system() {
        let room = Room::of(Path::new("/")).unwrap();
        assert!(room.size > 0 && room.free <= room.size, "{room:?}");
        assert!(Room::of(Path::new("/no/such/folder")).is_err());
    }

    #[test]
    fn a_shortage_says_how_full_it_is_and_how_to_mend_it() {
        let room = Room { free: 4096, size: 8 << 20 };
        let folder = Path::new("/dev/shm/bench");
        assert_eq!(room.shortage(folder, 4096), None);
        let text = room.shortage(folder, 20 << 20).unwrap();
        assert!(
            text.starts_with("needs 20 MiB of shared memory, but 4.0 KiB of 8.0 MiB"),
            "{text}"
        );
        assert!(text.contains("mount -o remount,size=32M /dev/shm"), "{text}");
        let elsewhere = room.shortage(Path::new("/tmp/bench"), 20 << 20).unwrap();
        assert!(elsewhere.contains("/tmp/bench") && !elsewhere.contains("mount"), "{elsewhere}");
    }

    #[test]
    fn a_hint_is_given_where_memory_is_full_or_blamed_and_not_otherwise() {
        let room = |mebibytes: u64| Room { free: mebibytes << 20, size: 1 << 30 };
        let bus_error = "exited on signal 7 (Bus error)";
        assert!(hint_about("", room(0)).unwrap().contains("0 bytes of 1.0 GiB are left"));
        assert!(hint_about(bus_error, room(5)).is_some());
        assert_eq!(hint_about(bus_error, room(500)), None);
        assert_eq!(hint_about("a wrong option", room(5)), None);
    }
}
