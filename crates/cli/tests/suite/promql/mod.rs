//! The part of Prometheus' language that our rules use, evaluated over scraped pages.
//!
//! A vector is a list of label sets with values. Rates are the difference of two scrapes over the
//! interval between them, which the caller names; so nothing depends on the clock.

use std::collections::BTreeMap;
use std::time::SystemTime;

/// Names and values of labels.
pub(crate) type Labels = BTreeMap<String, String>;
/// The result of an expression.
pub(crate) type Vector = Vec<(Labels, f64)>;

/// Label of the metric's name.
const NAME: &str = "__name__";

/// Two scrapes of all targets.
#[derive(Clone, Default)]
pub(crate) struct Scrapes {
    pub(crate) earlier: Vector,
    pub(crate) now: Vector,
    /// Seconds between them.
    pub(crate) interval_s: f64,
}

/// Reads a page in Prometheus' text format; each sample also has these labels.
pub(crate) fn page(text: &str, target: &[(&str, &str)]) -> Vector {
    let target = || target.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.trim_end_matches('}')),
            None => (series, ""),
        };
        let own = labels.split("\",").filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once("=\"").unwrap();
            (name.to_owned(), value.trim_end_matches('"').to_owned())
        });
        let name = (NAME.to_owned(), name.to_owned());
        Some((own.chain(target()).chain([name]).collect(), value.parse().ok()?))
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
}

impl Scrapes {
    /// Evaluates an expression.
    pub(crate) fn eval(&self, expression: &str) -> Vector {
        let tokens = tokens(expression);
        let mut parser = Parser { scrapes: self, tokens: &tokens, at: 0 };
        let result = parser.either();
        assert_eq!(parser.at, tokens.len(), "not understood whole: {expression}");
        match result {
            Operand::Vector(vector) => vector,
            Operand::Number(number) => vec![(Labels::new(), number)],
        }
    }

    /// Adds the result of a recording rule.
    pub(crate) fn record(&mut self, name: &str, expression: &str) {
        let named = |(mut labels, value): (Labels, f64)| {
            labels.insert(NAME.to_owned(), name.to_owned());
            (labels, value)
        };
        let recorded: Vec<_> = self.eval(expression).into_iter().map(named).collect();
        self.now.extend(recorded);
    }
}

enum Operand {
    Number(f64),
    Vector(Vector),
}

fn tokens(text: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), text.trim_start());
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_:.".contains(c);
        let length = if first == '"' {
            rest[1..].find('"').unwrap() + 2
        } else if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if ["=~", "!=", "==", ">=", "<="].iter().any(|pair| rest.starts_with(pair)) {
            2
        } else {
            1
        };
        found.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    found
}

struct Parser<'a> {
    scrapes: &'a Scrapes,
    tokens: &'a [String],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", String::as_str)
    }

    fn next(&mut self) -> String {
        self.at += 1;
        self.tokens[self.at - 1].clone()
    }

    fn expect(&mut self, token: &str) {
        assert_eq!(self.next(), token, "{:?}", self.tokens);
    }

    fn either(&mut self) -> Operand {
        let mut left = self.both();
        while self.peek() == "or" {
            self.at += 1;
            let (mut all, right) = (vector(left), vector(self.both()));
            let own: Vec<Labels> = all.iter().map(|(labels, _)| nameless(labels)).collect();
            all.extend(right.into_iter().filter(|(labels, _)| !own.contains(&nameless(labels))));
            left = Operand::Vector(all);
        }
        left
    }

    fn both(&mut self) -> Operand {
        let mut left = self.comparison();
        while self.peek() == "and" {
            self.at += 1;
            let right: Vec<Labels> = vector(self.comparison()).iter().map(|(labels, _)| nameless(labels)).collect();
            let kept = vector(left).into_iter().filter(|(labels, _)| right.contains(&nameless(labels)));
            left = Operand::Vector(kept.collect());
        }
        left
    }

    fn comparison(&mut self) -> Operand {
        let left = self.sum();
        let holds: fn(f64, f64) -> bool = match self.peek() {
            ">" => |a, b| a > b,
            "<" => |a, b| a < b,
            "==" => |a, b| a == b,
            ">=" => |a, b| a >= b,
            "<=" => |a, b| a <= b,
            _ => return left,
        };
        self.at += 1;
        let right = self.sum();
        let kept = joined(left, right).into_iter().filter(|(_, a, b)| holds(*a, *b));
        Operand::Vector(kept.map(|(labels, a, _)| (labels, a)).collect())
    }

    fn sum(&mut self) -> Operand {
        let mut left = self.product();
        while ["+", "-"].contains(&self.peek()) {
            let adds = self.next() == "+";
            let of = |(labels, a, b): (Labels, f64, f64)| (labels, if adds { a + b } else { a - b });
            left = Operand::Vector(joined(left, self.product()).into_iter().map(of).collect());
        }
        left
    }

    fn product(&mut self) -> Operand {
        let mut left = self.primary();
        while ["*", "/"].contains(&self.peek()) {
            let divides = self.next() == "/";
            let of = |(labels, a, b): (Labels, f64, f64)| (labels, if divides { a / b } else { a * b });
            left = Operand::Vector(joined(left, self.primary()).into_iter().map(of).collect());
        }
        left
    }

    fn primary(&mut self) -> Operand {
        let word = self.next();
        match word.as_str() {
            "(" => {
                let inner = self.either();
                self.expect(")");
                inner
            }
            "sum" | "min" | "max" => Operand::Vector(self.aggregate(&word)),
            "rate" | "increase" => Operand::Vector(self.rate(word == "rate")),
            "max_over_time" => Operand::Vector(self.largest()),
            "absent" => {
                self.expect("(");
                let inner = vector(self.either());
                self.expect(")");
                Operand::Vector(if inner.is_empty() { vec![(Labels::new(), 1.0)] } else { Vec::new() })
            }
            "time" => {
                self.expect("(");
                self.expect(")");
                let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
                Operand::Number(since_epoch.as_secs_f64())
            }
            number if number.starts_with(|c: char| c.is_ascii_digit()) => Operand::Number(number.parse().unwrap()),
            name => Operand::Vector(self.selected(name, &self.scrapes.now.clone())),
        }
    }

    fn aggregate(&mut self, by: &str) -> Vector {
        let mut kept = Vec::new();
        if self.peek() == "by" {
            self.at += 1;
            self.expect("(");
            while self.peek() != ")" {
                kept.push(self.next());
                if self.peek() == "," {
                    self.at += 1;
                }
            }
            self.expect(")");
        }
        self.expect("(");
        let inner = vector(self.either());
        self.expect(")");
        let mut groups: BTreeMap<Labels, f64> = BTreeMap::new();
        for (labels, value) in inner {
            let group = labels.into_iter().filter(|(name, _)| kept.contains(name)).collect();
            let fold: fn(f64, f64) -> f64 = match by {
                "sum" => |a, b| a + b,
                "min" => f64::min,
                _ => f64::max,
            };
            groups.entry(group).and_modify(|all| *all = fold(*all, value)).or_insert(value);
        }
        groups.into_iter().collect()
    }

    /// Returns the series of a range in both scrapes.
    fn range(&mut self) -> (BTreeMap<Labels, f64>, Vector) {
        self.expect("(");
        let (name, from) = (self.next(), self.at);
        let earlier = self.selected(&name, &self.scrapes.earlier.clone()).into_iter().collect();
        self.at = from;
        let now = self.selected(&name, &self.scrapes.now.clone());
        self.expect("[");
        self.next();
        self.expect("]");
        self.expect(")");
        (earlier, now)
    }

    /// Returns the larger value of each series.
    fn largest(&mut self) -> Vector {
        let (earlier, now) = self.range();
        let larger = |(labels, value): (Labels, f64)| {
            let before = earlier.get(&labels).copied().unwrap_or(value);
            (nameless(&labels), value.max(before))
        };
        now.into_iter().map(larger).collect()
    }

    /// Returns the increase of each series between the scrapes, by the second for a rate.
    fn rate(&mut self, by_second: bool) -> Vector {
        let (earlier, now) = self.range();
        let span = if by_second { self.scrapes.interval_s } else { 1.0 };
        let grown = |(labels, value): (Labels, f64)| {
            let before = *earlier.get(&labels)?;
            Some((nameless(&labels), (value - before) / span))
        };
        now.into_iter().filter_map(grown).collect()
    }

    fn selected(&mut self, name: &str, from: &Vector) -> Vector {
        let mut matchers = Vec::new();
        if self.peek() == "{" {
            self.at += 1;
            while self.peek() != "}" {
                let (label, operator, value) = (self.next(), self.next(), self.next());
                matchers.push((label, operator, value.trim_matches('"').to_owned()));
                if self.peek() == "," {
                    self.at += 1;
                }
            }
            self.expect("}");
        }
        let fits = |labels: &Labels| {
            labels[NAME] == name
                && matchers.iter().all(|(label, operator, value)| {
                    let own = labels.get(label).map_or("", String::as_str);
                    match operator.as_str() {
                        "=" => own == value,
                        "!=" => own != value,
                        _ => value.split('|').any(|one| one == own),
                    }
                })
        };
        from.iter().filter(|(labels, _)| fits(labels)).cloned().collect()
    }
}

fn nameless(labels: &Labels) -> Labels {
    labels.iter().filter(|(name, _)| *name != NAME).map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn vector(operand: Operand) -> Vector {
    match operand {
        Operand::Vector(vector) => vector,
        Operand::Number(number) => panic!("{number} is no vector"),
    }
}

/// Pairs the values of two operands with the same labels.
fn joined(left: Operand, right: Operand) -> Vec<(Labels, f64, f64)> {
    match (left, right) {
        (Operand::Vector(left), Operand::Number(b)) => left.into_iter().map(|(labels, a)| (labels, a, b)).collect(),
        (Operand::Number(a), Operand::Vector(right)) => right.into_iter().map(|(labels, b)| (labels, a, b)).collect(),
        (Operand::Vector(left), Operand::Vector(right)) => {
            let right: BTreeMap<Labels, f64> =
                right.into_iter().map(|(labels, value)| (nameless(&labels), value)).collect();
            let pair = |(labels, a): (Labels, f64)| Some((labels.clone(), a, *right.get(&nameless(&labels))?));
            left.into_iter().filter_map(pair).collect()
        }
        (Operand::Number(a), Operand::Number(b)) => vec![(Labels::new(), a, b)],
    }
}

#[test]
fn the_language_is_evaluated_as_prometheus_does() {
    let text = "a{x=\"1\",y=\"p\"} 4\na{x=\"2\",y=\"p\"} 6\nb{x=\"1\"} 0\n";
    let scrapes = Scrapes {
        earlier: page("a{x=\"1\",y=\"p\"} 2\na{x=\"2\",y=\"p\"} 6\n", &[]),
        now: page(text, &[]),
        interval_s: 4.0,
    };
    let values = |expression: &str| scrapes.eval(expression).into_iter().map(|(_, value)| value).collect::<Vec<_>>();
    assert_eq!(values("sum by (y) (a)"), [10.0]);
    assert_eq!((values("(a + a) / a"), values("b - b")), (vec![2.0, 2.0], vec![0.0]));
    assert_eq!(values("max by (x, y) (a) > 5"), [6.0]);
    assert_eq!(values("rate(a{x=\"1\"}[1m])"), [0.5]);
    assert_eq!(values("increase(a[15m]) > 1"), [2.0]);
    assert_eq!(values("max_over_time(a[15m]) > 5"), [6.0]);
    assert_eq!(values("a{x=~\"2|3\"} / a"), [1.0]);
    assert_eq!(values("b < 1 or absent(b)"), [0.0]);
    assert_eq!(values("c < 1 or absent(c)"), [1.0]);
    assert_eq!(values("a > 1 and a{x=\"2\"} > 1"), [6.0]);
    assert_eq!(values("a - 5 > 0"), [1.0]);
    assert_eq!(values("a - time() < 0").len(), 2);
    assert_eq!(values("max by (x) (a) > 1.1 * max by (x) (b)"), [4.0]);
}
