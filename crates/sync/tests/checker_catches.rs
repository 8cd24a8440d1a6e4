//! The checker must catch what it is there to catch: programs are bent on purpose, one instruction
//! at a time.

use paceline_sync::{
    checker::{Expectation, Violation, check},
    program::{Dest, Instr, Program, Site, Slot, Source, Span},
    strategy,
};
use proptest::prelude::*;

/// A program written down, so that it can be bent.
#[derive(Clone, Debug)]
struct Listed {
    lanes: Vec<Vec<Instr>>,
    divisor: u32,
}

impl Program for Listed {
    fn lanes(&self) -> u32 {
        self.lanes.len() as u32
    }

    fn instr(&self, lane: u32, pc: u32) -> Option<Instr> {
        self.lanes.get(lane as usize)?.get(pc as usize).copied()
    }

    fn divisor(&self, _lane: u32) -> u32 {
        self.divisor
    }
}

const SPAN: Span = Span { offset: 10, len: 40 };

fn listed(name: &str, members: u32) -> Vec<Listed> {
    let strategy = strategy::by_name(name).unwrap();
    let hosts: std::sync::Arc<[u32]> = (0..members).map(|member| member / 2).collect();
    (0..members)
        .map(|me| {
            let site = Site { hosts: hosts.clone(), me, step: 0, seed: 0 };
            let program = strategy.program(&site, SPAN);
            let lane = |lane| (0..).map_while(|pc| program.instr(lane, pc)).collect();
            Listed { lanes: (0..program.lanes()).map(lane).collect(), divisor: program.divisor(0) }
        })
        .collect()
}

fn verdict_of(programs: Vec<Listed>, expect: &Expectation) -> Result<(), Violation> {
    let boxed: Vec<Box<dyn Program>> =
        programs.into_iter().map(|program| Box::new(program) as Box<dyn Program>).collect();
    check(&boxed, expect).map(drop)
}

fn verdict(programs: Vec<Listed>) -> Result<(), Violation> {
    let expect = Expectation::all_reduce(programs.len() as u32, SPAN);
    verdict_of(programs, &expect)
}

/// The violation that a bent ring of four (or the like) shows.
fn caught(name: &str, bend: impl FnOnce(&mut Vec<Listed>)) -> Violation {
    let mut programs = listed(name, 4);
    assert_eq!(verdict(programs.clone()), Ok(()), "{name} is right before it is bent");
    bend(&mut programs);
    verdict(programs).expect_err("the bend must be seen")
}

/// A member with one lane.
fn single(instrs: Vec<Instr>) -> Listed {
    Listed { lanes: vec![instrs], divisor: 2 }
}

fn send(to: u32, pc: u32) -> Instr {
    Instr::Send { to, slot: Slot { lane: 0, pc }, source: Source::Own(10), len: 40 }
}

fn add_into(from: u32, into: Dest) -> Instr {
    Instr::Recv { from, with: Some(Source::Own(10)), into, len: 40 }
}

fn set_len(instr: &mut Instr, new: u64) {
    match instr {
        Instr::Send { len, .. } | Instr::Recv { len, .. } | Instr::Local { len, .. } => *len = new,
    }
}

#[test]
fn a_dropped_send_leaves_its_receiver_stuck() {
    let violation = caught("ring", |programs| set_len(&mut programs[1].lanes[0][0], 0));
    assert!(matches!(violation, Violation::Stuck { from: 1, .. }), "{violation}");
}

#[test]
fn another_order_of_addition_on_one_member_is_seen() {
    // Member 0 of four folds 1, 2, 3; bent, it takes member 2's contribution before member 1's.
    let violation = caught("one_shot", |programs| {
        let (first, second) = (4, 5);
        for (pc, sender) in [(first, 2), (second, 1)] {
            let Instr::Recv { from, .. } = &mut programs[0].lanes[0][pc] else { panic!() };
            *from = sender;
        }
        for (sender, new) in [(1, second), (2, first)] {
            for instr in &mut programs[sender].lanes[0] {
                if let Instr::Send { to: 0, slot, .. } = instr {
                    slot.pc = new as u32;
                }
            }
        }
    });
    assert!(matches!(violation, Violation::Order { element: 10, .. }), "{violation}");
    let text = violation.to_string();
    assert!(text.contains("+") && text.contains("member 0"), "{text}");
}

#[test]
fn a_contribution_that_enters_twice_is_seen() {
    let violation = caught("ring", |programs| {
        // The forwarded sum is received, and the own contribution added a second time.
        let Instr::Recv { into, len, .. } = programs[2].lanes[0][1] else { panic!() };
        assert_eq!(into, Dest::Reg(0));
        let again = Instr::Local {
            source: Source::Reg(0, 0),
            with: Some(Source::Own(20)),
            into: Dest::Reg(0),
            len,
        };
        // In the place of the send: the next instructions keep their addresses.
        programs[2].lanes[0][2] = again;
    });
    assert!(matches!(violation, Violation::CountedTwice { contributor: 2, .. }), "{violation}");
}

#[test]
fn a_wrong_length_is_seen_by_the_send() {
    let violation = caught("ring", |programs| set_len(&mut programs[3].lanes[0][0], 9));
    let Violation::WrongLength { at, sent: 9, expected: 10, .. } = violation else {
        panic!("{violation}")
    };
    assert_eq!((at.member, at.lane, at.pc), (3, 0, 0));
}

#[test]
fn two_lanes_that_write_the_same_output_are_seen() {
    let violation = caught("double_tree", |programs| {
        // A leaf of the second tree, so that nothing reads what it writes.
        let moved = programs[0].lanes[1].iter_mut().find_map(|instr| match instr {
            Instr::Recv { into: Dest::Out(offset), .. } => Some(offset),
            _ => None,
        });
        *moved.unwrap() -= 1;
    });
    assert!(matches!(violation, Violation::WrittenTwice { element: 29, .. }), "{violation}");
}

#[test]
fn in_place_a_lane_must_not_read_what_another_lane_overwrites() {
    let bend = |programs: &mut Vec<Listed>| {
        // A needless read of the other lane's half, into a register that nobody reads.
        let (source, into) = (Source::Own(10), Dest::Reg(1));
        programs[0].lanes[1].push(Instr::Local { source, with: None, into, len: 5 });
    };
    let violation = caught("double_tree", bend);
    assert!(matches!(violation, Violation::Race { element: 10, .. }), "{violation}");

    let mut programs = listed("double_tree", 4);
    bend(&mut programs);
    let apart = Expectation { in_place: false, ..Expectation::all_reduce(4, SPAN) };
    assert_eq!(verdict_of(programs, &apart), Ok(()), "apart, the read is harmless");
}

#[test]
fn in_place_a_lane_must_not_read_its_input_after_its_output() {
    let violation = caught("ring", |programs| {
        let (source, into) = (Source::Own(10), Dest::Reg(1));
        programs[0].lanes[0].push(Instr::Local { source, with: None, into, len: 5 });
    });
    assert!(matches!(violation, Violation::Race { .. }), "{violation}");
}

#[test]
fn in_place_one_instruction_must_not_shift_its_operands() {
    let copy = Instr::Local { source: Source::Own(10), with: None, into: Dest::Out(11), len: 30 };
    let violation = verdict(vec![Listed { lanes: vec![vec![copy]], divisor: 1 }]).unwrap_err();
    assert!(matches!(violation, Violation::Race { element: 11, .. }), "{violation}");
}

#[test]
fn a_receive_from_the_wrong_member_is_seen() {
    let violation = caught("ring", |programs| {
        let Instr::Recv { from, .. } = &mut programs[2].lanes[0][1] else { panic!() };
        *from = 3;
    });
    assert!(matches!(violation, Violation::WrongSender { expected: 3, .. }), "{violation}");
}

#[test]
fn a_cycle_of_waits_is_seen() {
    let member = |other| single(vec![add_into(other, Dest::Out(10)), send(other, 0)]);
    let violation = verdict(vec![member(1), member(0)]).unwrap_err();
    assert!(matches!(violation, Violation::Stuck { others: 1, .. }), "{violation}");
    // The same two, who send before they wait.
    let member = |other| single(vec![send(other, 1), add_into(other, Dest::Out(10))]);
    assert_eq!(verdict(vec![member(1), member(0)]), Ok(()));
}

#[test]
fn a_second_message_for_one_receive_is_seen() {
    let member =
        |other| single(vec![send(other, 2), send(other, 2), add_into(other, Dest::Out(10))]);
    let violation = verdict(vec![member(1), member(0)]).unwrap_err();
    assert!(matches!(violation, Violation::SentTwice { .. }), "{violation}");
}

#[test]
fn a_message_that_nothing_receives_is_seen() {
    for slot in [Slot { lane: 0, pc: 0 }, Slot { lane: 0, pc: 99 }, Slot { lane: 9, pc: 1 }] {
        let violation = caught("ring", |programs| {
            let Instr::Send { slot: named, .. } = &mut programs[0].lanes[0][0] else { panic!() };
            *named = slot;
        });
        assert!(matches!(violation, Violation::NothingReceives { to: 1, .. }), "{violation}");
    }
}

#[test]
fn members_and_registers_that_do_not_exist_are_seen() {
    let violation = caught("ring", |programs| {
        let Instr::Send { to, .. } = &mut programs[0].lanes[0][0] else { panic!() };
        *to = 4;
    });
    assert!(matches!(violation, Violation::NoSuchMember { peer: 4, .. }), "{violation}");
    let violation = caught("ring", |programs| {
        let Instr::Send { to, .. } = &mut programs[0].lanes[0][0] else { panic!() };
        *to = 0;
    });
    assert!(matches!(violation, Violation::ToItself { .. }), "{violation}");
    for (register, offset) in [(1, 0), (2, 0), (0, 1)] {
        let violation = caught("ring", |programs| {
            let Instr::Send { source, .. } = &mut programs[0].lanes[0][2] else { panic!() };
            *source = Source::Reg(register, offset);
        });
        assert!(matches!(violation, Violation::OutsideRegister { .. }), "{violation}");
    }
}

#[test]
fn memory_that_was_not_given_is_not_touched() {
    let copy = |from, to, len| Instr::Local {
        source: Source::Own(from),
        with: None,
        into: Dest::Out(to),
        len,
    };
    let alone = |instrs| verdict(vec![Listed { lanes: vec![instrs], divisor: 1 }]).unwrap_err();
    let violation = alone(vec![copy(9, 10, 40)]);
    assert!(matches!(violation, Violation::OutsideInput { .. }), "{violation}");
    let violation = alone(vec![copy(10, 11, 40)]);
    assert!(matches!(violation, Violation::OutsideOutput { .. }), "{violation}");
    let violation = alone(vec![copy(10, 10, 39)]);
    assert!(matches!(violation, Violation::Unwritten { element: 49, .. }), "{violation}");
    let early = Instr::Local { source: Source::Out(10), with: None, into: Dest::Reg(0), len: 1 };
    let violation = alone(vec![early, copy(10, 10, 40)]);
    assert!(matches!(violation, Violation::OutsideWritten { .. }), "{violation}");
}

#[test]
fn averages_are_divided_once_and_by_the_number_of_contributions() {
    let violation = caught("ring", |programs| programs[0].divisor = 3);
    assert!(matches!(violation, Violation::WrongDivisor { divisor: 3, .. }), "{violation}");
    // Member 1 sends its final value, and member 0 adds to it.
    let first = single(vec![send(1, 0), add_into(1, Dest::Out(10))]);
    let answer =
        Instr::Send { to: 0, slot: Slot { lane: 0, pc: 1 }, source: Source::Out(10), len: 40 };
    let second = single(vec![add_into(0, Dest::Out(10)), answer]);
    let violation = verdict(vec![first, second]).unwrap_err();
    assert!(matches!(violation, Violation::DividedTwice { .. }), "{violation}");
}

#[test]
fn elements_that_do_not_belong_together_are_not_added() {
    let violation = caught("ring", |programs| {
        let Instr::Recv { with, .. } = &mut programs[0].lanes[0][1] else { panic!() };
        *with = Some(Source::Own(10));
    });
    assert!(matches!(violation, Violation::Misaligned { .. }), "{violation}");
}

#[test]
fn a_mixing_that_favours_a_member_is_unfair() {
    // Members 0 and 1 take their mean; member 2 takes member 0's value instead of its own.
    let first = single(vec![send(1, 1), send(2, 0), add_into(1, Dest::Out(10))]);
    let second = single(vec![send(0, 2), add_into(0, Dest::Out(10))]);
    let copy = Instr::Recv { from: 0, with: None, into: Dest::Out(10), len: 40 };
    let third = single(vec![copy]);
    let expect = Expectation::averaging(3, SPAN);
    let violation = verdict_of(vec![first, second, third], &expect).unwrap_err();
    assert!(matches!(violation, Violation::Unfair { contributor: 0, .. }), "{violation}");
}

#[test]
fn a_lane_without_end_is_seen() {
    #[derive(Debug)]
    struct Endless;
    impl Program for Endless {
        fn lanes(&self) -> u32 {
            1
        }
        fn instr(&self, _lane: u32, _pc: u32) -> Option<Instr> {
            Some(Instr::Local { source: Source::Own(0), with: None, into: Dest::Reg(0), len: 0 })
        }
        fn divisor(&self, _lane: u32) -> u32 {
            1
        }
    }
    let programs: Vec<Box<dyn Program>> = vec![Box::new(Endless)];
    let violation = check(&programs, &Expectation::all_reduce(1, SPAN)).unwrap_err();
    assert!(matches!(violation, Violation::Endless { .. }), "{violation}");
}

#[test]
fn a_missing_program_is_seen() {
    let programs = listed("ring", 3);
    let expect = Expectation::all_reduce(4, SPAN);
    let violation = verdict_of(programs, &expect).unwrap_err();
    assert_eq!(violation, Violation::Incomplete { programs: 3, members: 4 });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Each of these bends makes any program wrong, wherever it is applied.
    #[test]
    fn no_bent_instruction_goes_unnoticed(
        name in prop::sample::select(vec![
            "ring", "double_tree", "hierarchical", "parameter_server", "parameter_server:2",
            "recursive_doubling", "one_shot",
        ]),
        members in 2_u32..9,
        victim in any::<prop::sample::Index>(),
        bend in 0..6,
    ) {
        let mut programs = listed(name, members);
        let mut instrs: Vec<&mut Instr> = programs
            .iter_mut()
            .flat_map(|program| &mut program.lanes)
            .flatten()
            .filter(|instr| !instr.is_empty())
            .collect();
        let chosen = victim.index(instrs.len());
        let instr = &mut *instrs[chosen];
        let before = *instr;
        match (bend, &mut *instr) {
            (0, instr) => set_len(instr, 0),
            (1, instr) => { let len = instr.len(); set_len(instr, len + 1) }
            (2, Instr::Send { to, .. }) => *to = (*to + 1) % members,
            (2, Instr::Recv { from, .. }) => *from = (*from + 1) % members,
            (3, Instr::Recv { with, .. } | Instr::Local { with, .. }) => *with = None,
            (4, Instr::Recv { into: Dest::Out(offset), .. }) => *offset += 1,
            (4, Instr::Send { slot, .. }) => slot.pc += 1,
            (5, Instr::Send { source: Source::Own(offset) | Source::Out(offset), .. }) => *offset += 1,
            (5, Instr::Recv { with: Some(Source::Own(offset)), .. }) => *offset += 1,
            _ => {}
        }
        prop_assume!(before != *instr);
        prop_assert!(verdict(programs).is_err(), "{name}: {before:?}");
    }
}
