//! Slurm's `topology.conf`: switches, and the nodes under each of those at the bottom, which are racks to us.

/// More nodes are no cluster but a mistake in a range.
const MOST_NODES: usize = 100_000;

/// Whether a line is one of it.
pub fn recognises(line: &str) -> bool {
    value(line, "SwitchName").is_some()
}

/// The nodes of a switch, and its name; none of a switch that joins others.
pub fn nodes(line: &str) -> Result<Vec<(String, String)>, String> {
    let Some(switch) = value(line, "SwitchName") else {
        return Err("it names no switch".to_string());
    };
    let Some(nodes) = value(line, "Nodes") else { return Ok(Vec::new()) };
    Ok(expanded(nodes)?.into_iter().map(|node| (node, switch.to_string())).collect())
}

/// What follows `NAME=`, in whatever letters.
fn value<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    let mut pairs = line.split_whitespace().filter_map(|word| word.split_once('='));
    pairs.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// `node[0-2,7],login` are `node0`, `node1`, `node2`, `node7` and `login`; leading zeros stay.
fn expanded(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for part in outside_brackets(list) {
        let Some((prefix, rest)) = part.split_once('[') else {
            names.push(part.to_string());
            continue;
        };
        let Some((ranges, suffix)) = rest.split_once(']') else {
            return Err(format!("`{part}` has no closing bracket"));
        };
        if suffix.contains('[') {
            return Err(format!("`{part}` has several ranges; write its nodes one by one"));
        }
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (Ok(from), Ok(to)) = (first.parse::<usize>(), last.parse::<usize>()) else {
                return Err(format!("`{range}` of `{part}` is no range"));
            };
            if from > to || to - from >= MOST_NODES || names.len() + to - from >= MOST_NODES {
                return Err(format!("`{range}` of `{part}` runs backwards or has too many nodes"));
            }
            let width = first.len();
            names.extend((from..=to).map(|number| format!("{prefix}{number:0width$}{suffix}")));
        }
    }
    Ok(names)
}

/// Cut at commas that are in no brackets.
fn outside_brackets(list: &str) -> Vec<&str> {
    let mut inside = false;
    let parts = list.split(|character| {
        match character {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        character == ',' && !inside
    });
    parts.filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(line: &str) -> Vec<String> {
        nodes(line).unwrap().into_iter().map(|(node, _)| node).collect()
    }

    #[test]
    fn nodes_are_listed_as_slurm_writes_them() {
        let line = "SwitchName=s0 LinkSpeed=10 Nodes=node[08-10,12],login,gpu[1]-x";
        let expected = ["node08", "node09", "node10", "node12", "login", "gpu1-x"];
        assert_eq!(names(line), expected);
        assert_eq!(names("switchname=s1 nodes=a,b"), ["a", "b"]);
        assert!(names("SwitchName=top Switches=s[0-1]").is_empty());
        assert!(!recognises("node0 rack0"));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for wrong in ["n[1-", "n[a-b]", "n[5-2]", "n[0-99999999999]", "n[1]x[2]", "n[-1]"] {
            assert!(nodes(&format!("SwitchName=s Nodes={wrong}")).is_err(), "{wrong}");
        }
    }
}
