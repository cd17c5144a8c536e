# A function for the script of continuous integration; sourced, never run.

# Installs the Chromium that tests open pages in, where there is none and the system's packages can be installed.
install_browser() {
  if command -v chromium >/dev/null; then
    return
  fi
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y -qq --no-install-recommends chromium >/dev/null
}
