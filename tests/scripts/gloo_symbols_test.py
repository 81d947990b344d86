# SPDX-License-Identifier: Apache-2.0
"""The library only declares Gloo's types (src/torch_seam/gloo_declarations): a symbol of Gloo that it defined would be
taken in place of LibTorch's. Usage: gloo_symbols_test.py LIBRARY"""

import re
import subprocess
import sys

# gloo::x, its constants, and its type information and tables; not what merely has such a type among its arguments.
OF_GLOO = re.compile(r"^_Z(T[ISVT]|GV)?N?[KVO]*4gloo")

for name, is_of_gloo in (("_ZN4gloo7ContextC1Eii", True), ("_ZNK4gloo7Context4sizeEv", True),
                         ("_ZTIN4gloo9ExceptionE", True), ("_ZTVN4gloo7ContextE", True),
                         ("_ZNSt12__shared_ptrIN4gloo9transport6DeviceELN9__gnu_cxx12_Lock_policyE2EED2Ev", False)):
    assert bool(OF_GLOO.match(name)) == is_of_gloo, name

listing = subprocess.run(["nm", "--defined-only", sys.argv[1]], check=True, capture_output=True, text=True).stdout
names = [line.split()[-1] for line in listing.splitlines() if line.strip() and not line.endswith(":")]
if not any("gloo_group" in name for name in names):
    sys.exit(f"{sys.argv[1]} has no process group on Gloo: this test looks at nothing")
found = [name for name in names if OF_GLOO.match(name)]
if found:
    sys.exit("symbols of Gloo are defined here; declare these types only:\n" + "\n".join(found))
print(f"{len(names)} symbols, none of Gloo's")
