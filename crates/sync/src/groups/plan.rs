//! A plan as data: for every step of a rotation, all members in groups. It knows nothing of why they are divided so.

use super::{Seating, grid, rotation};
use crate::program::Member;
use std::fmt;

/// Where a member stands in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Index of its group.
    pub group: u32,
    /// Its place in that group.
    pub position: u32,
}

/// All members in groups that do not overlap; sizes may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    groups: Vec<Vec<Member>>,
    /// By member.
    seats: Vec<Seat>,
}

impl Division {
    /// Groups that hold each of `members` once.
    ///
    /// # Panics
    /// If a member is in none or in two: whoever divides has a defect.
    pub(super) fn new(members: u32, groups: Vec<Vec<Member>>) -> Division {
        let nowhere = Seat { group: u32::MAX, position: 0 };
        let mut seats = vec![nowhere; members as usize];
        for (group, list) in groups.iter().enumerate() {
            for (position, member) in list.iter().enumerate() {
                let seat = &mut seats[*member as usize];
                assert_eq!(*seat, nowhere, "member {member} is in two groups");
                *seat = Seat { group: group as u32, position: position as u32 };
            }
        }
        assert!(!seats.contains(&nowhere), "a member is in no group: {groups:?}");
        Division { groups, seats }
    }

    /// The groups.
    pub fn groups(&self) -> &[Vec<Member>] {
        &self.groups
    }

    /// A member's group, and its place in it.
    pub fn group_of(&self, member: Member) -> (&[Member], u32) {
        let seat = self.seats[member as usize];
        (&self.groups[seat.group as usize], seat.position)
    }
}

impl fmt::Display for Division {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, group) in self.groups.iter().enumerate() {
            let numbers: Vec<String> = group.iter().map(Member::to_string).collect();
            write!(f, "{}{{{}}}", if index == 0 { "" } else { " " }, numbers.join(" "))?;
        }
        Ok(())
    }
}

/// Divisions that follow each other, step by step, and begin anew at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    members: u32,
    steps: Vec<Division>,
    lanes: u32,
}

impl Plan {
    /// What suits these seats: racks and representatives that take turns where there are several racks or contended
    /// links, a grid otherwise.
    pub fn of(seating: &Seating) -> Plan {
        let members = seating.members();
        let (steps, lanes) = match seating.is_flat() {
            true => (grid::divisions(members), 1),
            false => (rotation::divisions(seating), rotation::lanes(seating)),
        };
        let steps = steps.into_iter().map(|groups| Division::new(members, groups)).collect();
        Plan { members, steps, lanes }
    }

    /// Members of every division.
    pub fn members(&self) -> u32 {
        self.members
    }

    /// The divisions of a rotation, in order.
    pub fn steps(&self) -> &[Division] {
        &self.steps
    }

    /// The division of any step.
    pub fn at(&self, step: u64) -> &Division {
        &self.steps[(step % self.steps.len() as u64) as usize]
    }

    /// Into how many parts a tensor is best cut, each a step further in the rotation than the one before it: so the
    /// load of serving between racks lies on several members at a time.
    pub fn lanes(&self) -> u32 {
        self.lanes
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (step, division) in self.steps.iter().enumerate() {
            writeln!(f, "step {step:>3}  {division}")?;
        }
        Ok(())
    }
}
