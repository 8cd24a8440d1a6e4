//! Who averages with whom, step by step, for people: the plan of `shuffle` in a small world and what is proven of it.

use super::{
    text::{count, indented, wrapped},
    world::WorldSize,
};
use crate::exit::UsageError;
use anyhow::Result;
use paceline_job::script::Target;
use paceline_sync::{
    groups::{Plan, Seating, Terrain, prove},
    program::Span,
};

/// More steps than this are not listed.
const STEPS_LISTED: usize = 12;

/// Hosts in racks, neighbours together; nothing if no racks are asked for.
pub fn terrain(
    size: WorldSize,
    racks: Option<u32>,
    contended: &[Target],
) -> Result<Option<Terrain>> {
    let Some(racks) = racks else {
        if !contended.is_empty() {
            return Err(UsageError::new("--contended needs --racks or --topology").into());
        }
        return Ok(None);
    };
    let hosts = size.hosts;
    if racks > hosts {
        let text =
            format!("{hosts} hosts cannot fill {racks} racks: lower --racks or raise --hosts");
        return Err(UsageError::new(text).into());
    }
    let mut terrain = Terrain {
        contended_hosts: vec![false; hosts as usize],
        contended_racks: vec![false; racks as usize],
        racks: Vec::new(),
    };
    let all = Span { offset: 0, len: hosts.into() };
    for rack in 0..racks {
        terrain.racks.extend((0..all.part(rack, racks).len).map(|_| rack));
    }
    marked(terrain, contended).map(Some)
}

/// With these links contended.
pub fn marked(mut terrain: Terrain, contended: &[Target]) -> Result<Terrain> {
    let (hosts, racks) =
        (terrain.racks.len(), terrain.racks.iter().max().map_or(0, |last| last + 1));
    terrain.contended_racks.resize(racks as usize, false);
    for target in contended {
        let marks = match target {
            Target::Host(host) => terrain.contended_hosts.get_mut(*host),
            Target::Rack(rack) => terrain.contended_racks.get_mut(*rack),
        };
        let Some(mark) = marks else {
            let text = format!(
                "there is no {target}: hosts are 0 to {}, racks 0 to {}",
                hosts - 1,
                racks - 1
            );
            return Err(UsageError::new(text).into());
        };
        *mark = true;
    }
    Ok(terrain)
}

/// The plan, and what it does.
pub fn words(size: WorldSize, terrain: Option<&Terrain>) -> String {
    let hosts = size.host_of_each_rank();
    let plan = Plan::of(&match terrain {
        Some(terrain) => Seating::on(terrain, &hosts),
        None => Seating::of_hosts(&hosts),
    });
    let mut listed = String::new();
    for (step, division) in plan.steps().iter().take(STEPS_LISTED).enumerate() {
        listed += &format!("step {step:>2}  {division}\n");
    }
    if plan.steps().len() > STEPS_LISTED {
        listed += "… and so on\n";
    }
    let found = match prove(&plan) {
        Ok(proof) => {
            let left = match proof.is_exact() {
                true => "all hold the exact average".to_string(),
                false => {
                    format!("disagreement is {:.2} of what it was, or less", proof.contraction)
                }
            };
            format!(
                "What any rank knows reaches every other within {}, whichever comes first. After {}, {left}.",
                count(proof.reach.into(), "step"),
                count(proof.period.into(), "step"),
            )
        }
        Err(problem) => {
            format!("This plan does not bring all together: {problem}. Please report it.")
        }
    };
    let parts = match plan.lanes() {
        1 => String::new(),
        lanes => wrapped(&format!(
            "A chunk is cut into {lanes} parts, each a step further than the one before it, so that serving between \
             racks is shared."
        )),
    };
    format!("Groups:\n{}{}{parts}\n", indented(&listed), wrapped(&found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_racks_are_shown_and_proven() {
        let size = WorldSize { ranks: 12, hosts: 12 };
        let terrain = terrain(size, Some(4), &[Target::Rack(1)]).unwrap();
        let shown = words(size, terrain.as_ref());
        assert!(shown.contains("step  0  {1 2} {4 5} {7 8} {10 11} {3 0} {6 9}"), "{shown}");
        assert!(shown.contains("reaches every other within"), "{shown}");
        assert!(words(WorldSize { ranks: 8, hosts: 1 }, None).contains("exact average"));
    }

    #[test]
    fn what_does_not_exist_is_refused() {
        let size = WorldSize { ranks: 4, hosts: 4 };
        assert!(terrain(size, Some(5), &[]).is_err());
        assert!(terrain(size, Some(2), &[Target::Host(4)]).is_err());
        assert_eq!(terrain(size, None, &[]).unwrap(), None);
    }
}
