// Runs a health check of Argo CD over objects, as Argo CD does: in gopher-lua, with the libraries that it opens (package,
// base, table; its os has clocks only, and is left out), the object in the global `obj`, and within a second.
// stdin: {"script": "...", "objects": [{...}]}; stdout: [{"status": "...", "message": "..."}], one for each object.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	lua "github.com/yuin/gopher-lua"
)

type answer struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func main() {
	var asked struct {
		Script  string `json:"script"`
		Objects []any  `json:"objects"`
	}
	answers := []answer{}
	err := json.NewDecoder(os.Stdin).Decode(&asked)
	for _, object := range asked.Objects {
		var found answer
		if err == nil {
			found, err = assess(asked.Script, object)
		}
		answers = append(answers, found)
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(answers)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func assess(script string, object any) (answer, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	libraries := map[string]lua.LGFunction{
		lua.LoadLibName: lua.OpenPackage, lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable,
	}
	for _, name := range []string{lua.LoadLibName, lua.BaseLibName, lua.TabLibName} {
		call := lua.P{Fn: state.NewFunction(libraries[name]), Protect: true}
		if err := state.CallByParam(call, lua.LString(name)); err != nil {
			return answer{}, err
		}
	}
	limit, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state.SetContext(limit)
	state.SetGlobal("obj", value(state, object))
	if err := state.DoString(script); err != nil {
		return answer{}, err
	}
	table, isTable := state.Get(-1).(*lua.LTable)
	if !isTable {
		return answer{}, fmt.Errorf("the script returns %s and no table", state.Get(-1).Type())
	}
	return answer{lua.LVAsString(table.RawGetString("status")), lua.LVAsString(table.RawGetString("message"))}, nil
}

func value(state *lua.LState, of any) lua.LValue {
	switch typed := of.(type) {
	case bool:
		return lua.LBool(typed)
	case float64:
		return lua.LNumber(typed)
	case string:
		return lua.LString(typed)
	case []any:
		table := state.CreateTable(len(typed), 0)
		for _, item := range typed {
			table.Append(value(state, item))
		}
		return table
	case map[string]any:
		table := state.CreateTable(0, len(typed))
		for key, item := range typed {
			table.RawSetString(key, value(state, item))
		}
		return table
	}
	return lua.LNil
}
