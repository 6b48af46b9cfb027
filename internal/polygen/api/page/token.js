// The token of the admin API, where one is asked for. It is in sessionStorage: this
// tab has it until it is closed, and no request carries it that this page does not make.

const key = "sluice.token";
let held = "";
try {
  held = sessionStorage.getItem(key) ?? "";
} catch {
  // storage is forbidden: the token is held until the page is left
}

export const token = () => held;

export function setToken(t) {
  held = t;
  try {
    if (t) sessionStorage.setItem(key, t);
    else sessionStorage.removeItem(key);
  } catch {
    // as above
  }
}

// headers are those of every request.
export const headers = () => (held ? { Authorization: "Bearer " + held } : {});
